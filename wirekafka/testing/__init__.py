"""Parts of a broker for tests: yours and wirekafka's own.

    data_plane            a broker without sockets; requests and responses pass the codec
    faulty_storage        a disk that crashes, tears a write, fills up or fails where a test says so
    remembering_storage   a disk from which every state is made that a crash could leave
    memory_log            the log of a partition, in memory

Each passes the same tests as the real thing (`wirekafka/tests/testing`). Nothing here needs pytest.
"""
