"""Kafka's znodes: their paths and their content, as brokers of Kafka 2.8 to 3.9 read and write them.

    paths           where each znode is
    content         JSON in and out, and the error for content that cannot be read
    key_order       the order in which the collections of a JVM iterate
    membership      cluster id, brokers, controller
    topics          assignments and the state of partitions
    configs         configs of topics, brokers, users, clients and addresses, and the notifications about them
    requests        what tools and brokers ask the controller to do
    moves           topics that move between a single node and the chroot
    cluster_state   features and producer ids

Rules: a writer writes the bytes that a broker of Kafka 3.9 writes. A reader keeps the keys of the outermost object that it does
not know, and the writer writes them after the others, so that an extension survives. The JVM ignores unknown keys. Content that
cannot be read raises `MalformedZnodeError`, which names the path.

Source: kafka.zk.ZkData of Kafka 3.9.
"""
