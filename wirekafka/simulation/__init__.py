"""The whole cluster in one thread and in virtual time, and the checker that judges what its clients saw."""
