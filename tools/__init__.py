"""Programs for those who work on wirekafka; none of them is part of the package."""
