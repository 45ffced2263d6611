"""A ZooKeeper in memory: deterministic, without threads, sockets or a clock of its own.

    tree        znodes, versions and transactions
    watches     who is told about which change
    server      sessions and their connections; a socket server can stand on it
    client      a `ZooKeeperClient` of the server, whose connection fails on demand

Left out: ACLs, quotas, containers, znodes with a time to live, and the limit on the size of a request.
"""
