"""The tests of the data source need pyarrow and numpy, which wirekafka itself does not need."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pyarrow") and find_spec("numpy") else ["test_*.py"]
if not find_spec("pyspark"):
    collect_ignore_glob += ["test_source.py", "test_push_down.py"]
