"""A lake: a directory with one table of records a topic, as Parquet or Delta, that a pipeline fills exactly once.

Rules of this room: Spark reads and writes the records. Each change of the Parquet files is a commit, so a killed writer leaves no
half of a change that a later one does not finish (`commits`). The names of files and directories are in `layout`.
"""
