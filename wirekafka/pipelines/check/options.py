"""What a check compares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wirekafka.pipelines.lake.lake import may_be_delta
from wirekafka.pipelines.session import Connector

if TYPE_CHECKING:
    from wirekafka.pipelines.kafka import Cluster


@dataclass(slots=True, frozen=True)
class CheckOptions:
    """The options of a check.

    Attributes:
        lake: the path or URI of the lake.
        cluster: the brokers that the records came from; None: they are not asked.
        data_dirs: data directories of these brokers, whose segment files are read instead of asking the brokers for records.
        accept_deleted: whether offsets before the log start offset count as explained.
    """

    lake: str
    cluster: Cluster | None = None
    data_dirs: tuple[Path, ...] = ()
    accept_deleted: bool = False


def connectors(options: CheckOptions) -> frozenset[Connector]:
    """Returns the connectors that the session of a check needs: none for a local Parquet lake and data directories."""
    needed = {Connector.DELTA} if may_be_delta(options.lake) else set()
    if options.cluster is not None and not options.data_dirs:
        needed.add(Connector.KAFKA)
    return frozenset(needed)
