"""Programs for developers of wirekafka; none of them is part of the package."""
