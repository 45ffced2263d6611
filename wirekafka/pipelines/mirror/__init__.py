"""Mirrors topics from one Kafka cluster to another, exactly once, with their offsets mapped and the groups' offsets translated.

`pipeline` has the stream, `topic_plan` and `registry` the topics of the target, `translation` and `groups` the offsets of groups.
"""
