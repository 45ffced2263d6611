"""The completion of names in a shell."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from wirekafka.cli import main
from wirekafka.testing import EmbeddedBroker


def completed(words: list[str], incomplete: str) -> list[str]:
    found = ShellComplete(main, {}, "wirekafka", "_WIREKAFKA_COMPLETE").get_completions(words, incomplete)
    return [each.value for each in found]


def test_names_of_topics_and_groups_come_from_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.cli.client.completion.TIMEOUT_SECONDS", 60.0)
    with EmbeddedBroker() as broker:
        for name in ("orders", "orders-copy", "payments"):
            broker.create_topic(name)
        assert completed(["topic", "describe", "-b", broker.bootstrap], "ord") == ["orders", "orders-copy"]
        monkeypatch.setenv("WIREKAFKA_BOOTSTRAP_SERVER", broker.bootstrap)
        assert completed(["consume", "orders"], "pay") == ["payments"]
        assert completed(["group", "describe"], "") == []
        reset = ["group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute", "--timeout", "60"]
        assert CliRunner().invoke(main, reset).exit_code == 0
        assert completed(["group", "describe"], "b") == ["billing"]


@pytest.mark.parametrize("words", [["produce"], ["group", "delete"], ["produce", "-b", "127.0.0.1:1"]])
def test_without_a_cluster_no_name_is_completed(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.delenv("WIREKAFKA_BOOTSTRAP_SERVER", raising=False)
    assert completed(words, "") == []


def test_commands_are_completed() -> None:
    assert completed(["group"], "re") == ["reset-offsets"]
    assert completed([], "con") == ["config", "consume"]
