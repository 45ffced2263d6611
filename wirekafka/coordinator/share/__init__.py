"""Share groups (KIP-932): queues on top of partitions, whose records are given out and acknowledged one by one."""
