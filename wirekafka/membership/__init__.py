"""The membership of a broker in a cluster with ZooKeeper.

    member            all parts that only a member has

ZooKeeper and the cluster:

    retrying_client   ZooKeeper for tasks: one `await` for each request, which survives lost connections
    many_znodes       reads, writes and deletes many znodes at once
    supervision       runs the tasks of a member, which begin again after an error
    cluster_id        the id of the cluster, the znodes of every cluster, and the clusters that are refused
    registration      the broker's znode, whose czxid is the broker epoch; the broker registers again after each expiry
    controller_watch  follows the id of the controller
    feature_watch     follows the finalized features
    configs           the settings in ZooKeeper: read, followed and changed
    stored_configs    the rules for settings in ZooKeeper
    stored_topics     the names of the topics, and the partition counts of the internal topics, at the start

Other brokers and the controller:

    peers             connections to the other brokers
    controller_requests     all requests of this broker to the controller
    controller_channel      the queue that sends them, to whichever broker is the controller
    alter_partition_sender  proposes changes of in-sync replicas
    topic_creation          creates topics that clients ask for
    producer_id_blocks      gets producer ids
    controlled_shutdown     moves leaderships away before the broker stops
    directory_failures      tells the controller about failed data directories
    topic_waits             waits until the controller has told this broker about topics

From one node to many, and back:

    single_node       what a single node has on disk
    growing           moves a single node into an empty chroot
    leaving           makes the last member a single node

Nothing here is imported without `zookeeper.connect`.
"""
