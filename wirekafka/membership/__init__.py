"""The membership of a broker in a cluster with ZooKeeper.

    member            all parts that only a member has, composed
    retrying_client   ZooKeeper for tasks: one await for each request, which survives lost connections
    cluster_id        the id of the cluster, the znodes of every cluster, and the clusters that are refused
    registration      the broker's znode, whose czxid is the broker epoch; the broker registers again after each expiry
    controller_watch  watches the id of the controller
    supervision       runs the tasks of a member, which begin again after an error
    directory_failures  tells the controller about failed data directories
    peers             connections to the other brokers
    controller_channel  requests to the controller, whichever broker that is
    alter_partition_sender  proposes changes of in-sync replicas
    topic_creation    automatic creation of topics
    controlled_shutdown  asks the controller to move leaderships before the broker stops
    producer_id_blocks  producer ids from the controller
    controller        composes the requests to the controller
    configs           the settings in ZooKeeper: read, followed and changed
    stored_topics     the partition counts of the internal topics at the start
    stored_configs    the rules for settings in ZooKeeper

Nothing here is imported without `zookeeper.connect`.
"""
