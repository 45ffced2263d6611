"""The controller of a cluster with ZooKeeper: it elects leaders, and tells the brokers which partitions they lead and follow.

How it works: every broker has a `Controller`, and one of them is active. The active one handles one event after the other. An
event is a script (`scripts.py`) of operations on ZooKeeper over what the controller knows (`context.py`); each write is a multi
with a check of `/controller_epoch`, so that a controller that was deposed changes nothing. After a script the brokers are told,
by one ordered queue for each (`channel.py`).

Rules of this room: no trio, no sockets, no clock. Time, connections and ZooKeeper are given.

Source: kafka.controller of Kafka 3.9.
"""
