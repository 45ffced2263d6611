"""`python -m wirekafka` is the same as `wirekafka`."""

from wirekafka.cli import main

main()
