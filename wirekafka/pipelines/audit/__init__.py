"""The audit: compares what producers claim, what the broker has and what lakes have, by topic, partition and minute.

Modules:
    claims: what producers write about the records they sent, without any dependency.
    options: what an audit reads.
    offsets, groups, checkpoints: the offsets of the partitions, of consumer groups, and of Spark's streaming queries.
    counts: the aggregations in Spark, one for each place.
    compare: tells differences from records that are not there yet or not there any more.
    report, table, page: the result, and how it is shown.
    run: puts them together.

Rules of this room: records are read and counted in Spark, and only counts reach the driver. `claims`, `compare`, `report` and the
parsers of `checkpoints` are pure.
"""
