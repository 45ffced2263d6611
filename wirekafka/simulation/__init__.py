"""A deterministic simulator of a cluster: real logs and replication over a simulated network, disks, ZooKeeper and clocks.

How it works: everything that happens is an event with a virtual time (`events`). Random numbers decide everything that a real
system leaves to chance (`dice`), and a seed decides the random numbers. So a seed always gives the same run, whose transcript has
the same digest.

    options          what a seed decides about a whole run: sizes, timeouts, rates of faults
    dice, events     chance and virtual time
    disk, logs       a file system in memory that loses what was not synced; the logs of one broker on it
    network, exchange  connections with delay, loss and partitions; requests and responses as bytes
    cluster, node    what all parts of a run share; a broker as its parts see it
    machine          the disk and the clock of a broker, which outlive the process of the broker
    broker, hosting, leading, proposals, registration  one run of a broker, from its start to a crash
    clients, transactions  producers and consumers, which record a history
    operations       what operators do: elections, reassignments, topics, controlled shutdowns
    faults           crashes, losses of power, partitions of the network, and other faults
    world            one run: builds all parts, heals the cluster at the end, and returns the files of the brokers
    history          the requests and responses of the clients
    checker/         judges a run by its history and its files
    run, __main__    runs seeds and judges each run; the command

Rules of this room: no trio, no threads, no clock, no random numbers but the dice, except in `__main__`. Nothing depends on the
order of a set of strings or on the address of an object.

What is real: `Log` with its recovery and flushes, `ClusterReplicas` and `ReplicaFetchers` with all below them, `ClusterImage`,
`AlterPartitionSender` with its `ControllerChannel`, `Controller` with all below it, the codec and the messages, the model of
ZooKeeper and the content of its znodes. What is not: the loop, the sockets, `LogManager`, the handlers of the requests, fetch
sessions of leaders, and transaction coordinators.
"""
