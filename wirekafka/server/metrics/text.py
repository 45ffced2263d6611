"""Writes metrics in the text format of Prometheus.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Number = int | float
Labels = Mapping[str, str]


class Kind(Enum):
    """The types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class Metric:
    """A metric with its samples.

    Attributes:
        samples: the suffix of the name, the labels and the value of each.
    """

    name: str
    kind: Kind
    help: str
    samples: list[tuple[str, Labels, Number]] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        """Yields the lines of the metric."""
        yield f"# HELP {self.name} {_escaped(self.help)}"
        yield f"# TYPE {self.name} {self.kind.value}"
        for suffix, labels, value in self.samples:
            shown = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            yield f"{self.name}{suffix}{f'{{{shown}}}' if shown else ''} {value}"


def counter(name: str, help_: str, value: Number) -> Metric:
    """Returns a counter without labels."""
    return Metric(name, Kind.COUNTER, help_, [("", {}, value)])


def gauge(name: str, help_: str, value: Number) -> Metric:
    """Returns a gauge without labels."""
    return Metric(name, Kind.GAUGE, help_, [("", {}, value)])


def histogram(name: str, help_: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    """Returns a histogram.

    Args:
        bounds: the inclusive upper bounds.
        counts: the number of values up to each bound and above the one before; the last one is for those above all bounds.
        total: the sum of all values.
    """
    metric, sum_ = Metric(name, Kind.HISTOGRAM, help_), 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        sum_ += count
        metric.samples.append(("_bucket", {"le": bound}, sum_))
    metric.samples += [("_sum", {}, total), ("_count", {}, sum_)]
    return metric


def render(metrics: Iterable[Metric]) -> str:
    """Returns the text of metrics."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
