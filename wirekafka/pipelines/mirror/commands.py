"""The mirror as functions: what `wirekafka pipeline mirror` runs, and what a program may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from wirekafka.pipelines.mirror.groups import GroupTranslator
from wirekafka.pipelines.mirror.options import MirrorOptions
from wirekafka.pipelines.mirror.pipeline import Mirror, TopicPlan
from wirekafka.pipelines.mirror.places import OffsetMap
from wirekafka.pipelines.mirror.topics import read_topics
from wirekafka.pipelines.mirror.translation import Translation
from wirekafka.pipelines.mirror.upkeep import Upkeep, kept_up
from wirekafka.pipelines.running import Recover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def start_mirror(spark: SparkSession, options: MirrorOptions) -> StreamingQuery:
    """Starts a mirror, and returns its query.

    The query translates no groups, and it ends when a topic is deleted at the source or when no broker answers. `run_mirror` goes
    on then.

    Raises:
        PipelineError: the mirror cannot start; the text says what to do.
    """
    return Mirror(options).start(spark)


def run_mirror(options: MirrorOptions, run: Callable[[Callable[[], StreamingQuery], Recover], None], spark: SparkSession) -> None:
    """Runs a mirror until it ends by itself or is stopped; translates groups beside it.

    Args:
        options: the mirror.
        run: runs a query that its first argument starts, as `wirekafka.pipelines.running.run_query` does; its second argument is
            `recover`.
        spark: the session.

    Raises:
        PipelineError: the mirror cannot start or go on; the text says what to do.
    """
    mirror = Mirror(options)
    upkeep = Upkeep(options, OffsetMap(options.target, mirror.sink, mirror.registry))
    with kept_up(upkeep):
        run(lambda: mirror.start(spark), mirror.recover)


def translate_groups(options: MirrorOptions, *, commits: bool) -> list[Translation]:
    """Translates the groups' offsets once, without Spark.

    Args:
        options: the mirror that has mirrored, or mirrors, the topics; its `groups` is needed.
        commits: commits the offsets at the target too.

    Returns:
        Each offset of each selected group for a mirrored topic, and what is done with it.

    Raises:
        PipelineError: a cluster does not answer, or refuses.
    """
    mirror = Mirror(options)
    translator = GroupTranslator(options, OffsetMap(options.target, mirror.sink, mirror.registry))
    table = translator.table()
    if commits:
        translator.commit(table)
    return table


def describe(options: MirrorOptions) -> Mapping[str, object]:
    """Returns what a mirror would read, create, change and write; changes nothing.

    Raises:
        PipelineError: the mirror could not start; the text says what to do.
    """
    mirror = Mirror(options)
    selection = mirror.connect()
    topics = read_topics(options.source, selection.matching(options.source))
    groups = [f"{each.group}  {each.source} {each.source_offset}: {each.action.value}" for each in _table(options)]
    plan: dict[str, object] = {
        "source": f"{options.source.bootstrap}  cluster {mirror.source_cluster}",
        "target": f"{options.target.bootstrap}  cluster {mirror.target_cluster}",
        "reads": f"{options.isolation} records, {options.batch_records} a batch",
        "checkpoint": options.checkpoint,
        "progress": f"topics {mirror.sink.progress_topic}, {mirror.sink.runs_topic} and {mirror.registry.topic} at the target",
        "topics": [_line(plan) for plan in mirror.plan(topics)],
        "groups": groups,
    }
    if options.restarted_topics:
        plan["from the beginning"] = options.restarted_topics
    return plan


def _table(options: MirrorOptions) -> list[Translation]:
    return translate_groups(options, commits=False) if options.groups is not None else []


def _line(plan: TopicPlan) -> str:
    change, count = plan.change, plan.source.partition_count
    line = f"{plan.topic} -> {change.target}, {count} partition{'s' if count != 1 else ''}"
    if change.create:
        line += ": create"
    elif change.partition_count is not None:
        line += f": add partitions up to {change.partition_count}"
    settings = [f"{name}={value}" for name, value in sorted(change.set_configs.items())]
    settings += [f"{name} by default" for name in sorted(change.delete_configs)]
    return f"{line}; set {', '.join(settings)}" if settings else line
