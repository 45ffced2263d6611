"""Records on disk: the only code that opens data files."""
