"""Kafka's command line tools."""

from __future__ import annotations

import base64
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from compat_tests.harness import jars

LOGGING = (f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",)
OLDER_LOGGING = (f"-Dlog4j.configuration=file:{jars.HERE / 'java' / 'log4j.properties'}",)

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REPLICA_VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"
ZOOKEEPER_SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"

TOPICS_2_8 = "kafka.admin.TopicCommand"
REASSIGN_PARTITIONS_2_8 = "kafka.admin.ReassignPartitionsCommand"
PREFERRED_REPLICA_ELECTION_2_8 = "kafka.admin.PreferredReplicaLeaderElectionCommand"


LEFT_BEHIND = re.compile(r"^\[[^]]*\] (?:WARN|ERROR) .*\(org\.apache\.kafka\.clients\.[\w.]+\)\n?", re.MULTILINE)
"""Log lines of clients of a tool that failed earlier in this JVM: the clients still look for a broker that has stopped."""


@dataclass(frozen=True)
class Outcome:
    """The result of a tool: its exit code and its output."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """The lines of stdout that are not empty."""
        return [line for line in self.out.splitlines() if line.strip()]


class Tools:
    """One JVM that runs the tools one after the other (java/src/tools); a tool that runs until a signal has a JVM of its own."""

    def __init__(self, log: Path, profile: str = jars.KAFKA) -> None:
        flags = LOGGING if profile == jars.KAFKA else OLDER_LOGGING
        command = jars.java_command(profile, "Tools", programs=("tools",), flags=flags)
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def run(self, tool: str, *arguments: str, timeout_s: float = 120) -> Outcome:
        """Runs a tool; returns its result without the log lines of clients, because these may belong to earlier tools."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = [base64.b64encode(word.encode()).decode() for word in (tool, *arguments)]
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"{tool} {' '.join(arguments)} did not end within {timeout_s} s:\n{self.log.read_text()[-4000:]}"
        code, out, err = line.rstrip("\n").split("\t")
        told = (LEFT_BEHIND.sub("", base64.b64decode(text).decode()) for text in (out, err))
        return Outcome(int(code), *told)

    def check(self, tool: str, *arguments: str, timeout_s: float = 120) -> Outcome:
        """Runs a tool that must succeed."""
        outcome = self.run(tool, *arguments, timeout_s=timeout_s)
        assert outcome.code == 0, f"{tool} {' '.join(arguments)}: {outcome}"
        return outcome

    def close(self) -> None:
        """Stops the JVM."""
        self.process.kill()
        self.process.communicate()


def zookeeper_shell(connect: str, *commands: str) -> Outcome:
    """Runs commands in zookeeper-shell of Kafka 3.9, which writes its answers to stdout and stderr."""
    shell = jars.java_command(jars.OLDER_KAFKA, ZOOKEEPER_SHELL, heap_mib=64, flags=OLDER_LOGGING)
    lines = "".join(f"{command}\n" for command in (*commands, "quit"))
    done = subprocess.run([*shell, "-server", connect], input=lines, capture_output=True, text=True, timeout=120, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_alone(tool: str, *arguments: str, input_text: str | None = None, timeout_s: float = 120) -> Outcome:
    """Runs a tool in a JVM of its own, as the tool's start script does."""
    command = jars.java_command(jars.KAFKA, tool, flags=LOGGING)
    done = subprocess.run(
        [*command, *arguments], input=input_text, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
