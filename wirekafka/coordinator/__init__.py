"""Who owns which partition and which offset. No I/O and no clock, but for `runtime`, the one edge."""
