"""ZooKeeper, which a broker of a cluster needs.

    session     the port: operations, results, errors, states and watch events; a client is an object with these methods
    model       a ZooKeeper in memory, and a client of it

Nothing here is imported without `zookeeper.connect`.
"""
