"""Parts of a broker for tests: for your tests and for wirekafka's own.

    data_plane            a broker without sockets; requests and responses pass the codec
    faulty_storage        a disk that crashes, tears a write, fills up or fails where a test says so
    remembering_storage   a disk that can build every state that a crash may leave
    memory_log            the log of a partition, in memory
    cluster               several brokers and a ZooKeeper in one process

Each passes the same tests as the real part (`wirekafka/tests/testing`). Nothing here needs pytest.
"""
