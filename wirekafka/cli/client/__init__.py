"""`wirekafka topic`, `group`, `produce` and `consume`: clients of any Kafka-compatible cluster, on confluent-kafka (librdkafka).

Rules of this room: a module imports confluent-kafka, rich and the rest of the package only when its command runs. A command that
fails raises a `ClientCommandError`, which is printed as one line on stderr. Exit codes: 0 success, 1 failure, 2 wrong arguments.

    errors      the error, and the classes of commands that print it
    completion  completes names in a shell
    options     the options of every command, and the connection that they name
    connection  the clients of a cluster: librdkafka's settings, its errors as sentences with a remedy
    tables      tables for people and JSON for scripts
"""
