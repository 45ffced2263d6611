"""ZooKeeper, which a broker of a cluster needs.

    session         the port: operations, results, errors, states and watch events; a client is an object with these methods
    kazoo_session   a client of a real ZooKeeper; the only module that imports kazoo
    layout          the paths and the content of Kafka's znodes
    model           a ZooKeeper in memory, and a client of it
    server          the model on a socket, for ZooKeeper's own clients
    jute            the records and frames of ZooKeeper's client protocol
    translation     requests of the protocol -> operations of the port, and results -> responses

Nothing here is imported without `zookeeper.connect`.
"""
