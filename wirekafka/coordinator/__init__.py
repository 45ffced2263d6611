"""The coordinators of groups, transactions and share partitions. Only the modules named `runtime` do I/O and read the clock."""
