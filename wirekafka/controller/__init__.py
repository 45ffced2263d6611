"""The controller of a cluster with ZooKeeper: it elects leaders, and tells the brokers which partitions they lead and follow.

How it works: every broker has a `Controller`, and one of them is active. The active controller handles one event after the
other: a znode has changed, a broker has answered, a client has asked, or a timer is due. The work of an event is a script, a
generator of operations on ZooKeeper. A script reads and changes the context, which is what the controller knows of the cluster.
Each write is a transaction of ZooKeeper (a multi) that checks `/controller_epoch`, so that a controller that was deposed
changes nothing. After a script the controller sends requests to the brokers, in one ordered queue for each broker.

The modules in the order in which to read them; docs/architecture.md follows one event through the first eight:

    controller          the queue of events; becomes active and resigns
    scripts             what a script is, and what runs it
    context             what the controller knows of the cluster
    reactions           which script belongs to a change of a znode, and to an answer of a broker
    brokers             brokers that come and go, and failed log directories
    partition_states, elections   leaders: who waits for an election, and who is elected
    replica_states      replicas that go offline and come online
    writes              the writes to ZooKeeper
    requests, channel   the requests to the brokers: collected, and sent in order
    competition, failover   the election of the controller, and what a new controller does
    topics, administration, assignment, deletion   topics: found, created by clients, placed on brokers, deleted
    reassignment, alter_partition, controlled_shutdown   other changes of replicas, in-sync replicas and leaders
    requested_elections, rebalance   leaders that clients and tools ask for, and preferred leaders
    features, producer_ids   the finalized features, and blocks of producer ids
    settings            what the controller needs of the settings of its broker
    local_controller    the port through which handlers of requests use the controller of their broker

Rules of this package: no trio, no sockets, no clock. The caller gives time, connections and ZooKeeper.

Source: kafka.controller of Kafka 3.9.
"""
