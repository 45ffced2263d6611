"""A ZooKeeper in memory: deterministic, without threads, sockets or a clock of its own.

    tree        znodes, versions and transactions
    watches     the watches of all connections, and the events that end them
    server      sessions and their connections; `zookeeper.server` serves it on a socket
    snapshot    the znodes as bytes, for the next process
    client      a `ZooKeeperClient` of the server, whose connection fails on demand

Left out: ACLs, quotas, containers, znodes with a time to live, and the limit on the size of a request.
"""
