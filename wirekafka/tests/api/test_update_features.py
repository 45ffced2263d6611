"""UpdateFeatures: its versions, and the effects of its changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.consumer_group_describe import ConsumerGroupDescribeRequest
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.share_group_describe import ShareGroupDescribeRequest
from wirekafka.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import UpgradeType
from wirekafka.names import TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.tests.api import group_client, sharing, transacting
from wirekafka.tests.api.data_plane import Caller, run, wait_for
from wirekafka.tests.api.sharing import ACCEPT, Member, acquired, append
from wirekafka.tests.api.test_share_groups import alter, delete, describing
from wirekafka.tests.api.transacting import V1, Transactor
from wirekafka.wire.batch import iterate_records
from wirekafka.wire.messages.api_versions import ApiVersionsRequest

UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION


def update(caller: Caller, name: str, level: int, version: int = 2, *, validate_only: bool = False) -> Any:
    """Returns the response to an update of one feature to a level."""
    current = caller.broker.topics.features.level(name)
    type_ = UpgradeType.SAFE_DOWNGRADE if level < current else UpgradeType.UPGRADE
    key = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=type_)
    return caller.ask(UpdateFeaturesRequest(feature_updates=[key], validate_only=validate_only), version)


def set_level(caller: Caller, name: str, level: int) -> None:
    assert update(caller, name, level).error_code == ErrorCode.NONE


def told(caller: Caller) -> tuple[dict[str, int], int]:
    """Returns the finalized features and their epoch from ApiVersions."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = caller.ask(request, 4)
    return {each.name: each.max_version_level for each in response.finalized_features}, response.finalized_features_epoch


@pytest.mark.parametrize("version", [1, 2])
def test_update_is_told_to_clients_under_a_new_epoch(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        before, epoch = told(caller)
        response = update(caller, "transaction.version", 1, version)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        results = [(each.feature, each.error_code, each.error_message) for each in response.results]
        assert results == ([("transaction.version", 0, "NONE")] if version == 1 else [])
        assert told(caller) == (before | {"transaction.version": 1}, epoch + 1)

    run(body, tmp_path)


def test_update_of_version_0_only_raises_levels(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        set_level(caller, "transaction.version", 1)
        key = FeatureUpdateKey(feature="transaction.version", max_version_level=0, allow_downgrade=True)
        response = caller.ask(UpdateFeaturesRequest(feature_updates=[key]), 0)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        key.max_version_level = 2
        response = caller.ask(UpdateFeaturesRequest(feature_updates=[key]), 0)
        assert [(each.feature, each.error_code) for each in response.results] == [("transaction.version", 0)]
        assert told(caller)[0]["transaction.version"] == 2

    run(body, tmp_path)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_update_that_cannot_be_is_an_error_of_the_whole_request(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        before = told(caller)
        response = update(caller, "transaction.version", 7, version)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert response.error_message == (
            "The update failed for all features since the following feature had an error: Invalid update version 7 for feature "
            "transaction.version. Local controller 1 only supports versions 0-2"
        )
        assert response.results == []
        assert told(caller) == before

    run(body, tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_update_that_is_only_validated_is_not_made(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        before = told(caller)
        assert update(caller, "group.version", 0, version, validate_only=True).error_code == ErrorCode.NONE
        assert told(caller) == before

    run(body, tmp_path)


def test_a_disk_that_fails_is_not_said_to_be_a_feature_s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(caller: Caller) -> None:
        def refuse(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full")

        monkeypatch.setattr("wirekafka.metadata.journal.Journal.put_features", refuse)
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR: full"):
            update(caller, "group.version", 0)

    run(body, tmp_path)


def test_without_group_version_consumer_groups_are_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        def join() -> int:
            request = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=20_000,
                subscribed_topic_names=["flights"],
                topic_partitions=[],
            )
            return int(caller.ask(request, 1).error_code)

        def describe() -> int:
            return int(caller.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups[0].error_code)

        assert (join(), describe()) == (0, 0)
        set_level(caller, "group.version", 0)
        assert (join(), describe()) == (UNSUPPORTED_VERSION, UNSUPPORTED_VERSION)
        set_level(caller, "group.version", 1)
        assert (join(), describe()) == (0, 0)

    group_client.run(body, tmp_path)


def refused(ask: Callable[[], Any]) -> ErrorCode | None:
    """Returns the error of a whole request, which dispatch answers; None if the handler answers."""
    try:
        ask()
    except KafkaError as error:
        return error.code
    return None


def test_without_share_version_all_that_share_groups_ask_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        named = [describing.DescribeShareGroupOffsetsRequestGroup(group_id="g")]
        whole: list[Callable[[], Any]] = [
            lambda: member.heartbeat(),
            lambda: member.ask(member.fetch_request(0), 2),
            lambda: member.acknowledge((0, 0, 0, [ACCEPT])),
            lambda: alter(caller),
            lambda: delete(caller),
        ]

        def by_group() -> list[int]:
            described = caller.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1)
            offsets = caller.ask(describing.DescribeShareGroupOffsetsRequest(groups=named), 1)
            return [described.groups[0].error_code, offsets.groups[0].error_code]

        assert by_group() == [0, 0]
        set_level(caller, "share.version", 0)
        assert [refused(ask) for ask in whole] == [UNSUPPORTED_VERSION] * 5
        assert by_group() == [UNSUPPORTED_VERSION] * 2
        set_level(caller, "share.version", 1)
        assert by_group() == [0, 0]
        assert refused(whole[0]) is None

    sharing.run(body, tmp_path)


def test_members_of_share_groups_lose_their_sessions_with_the_feature(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        one, other = Member(caller, "m"), Member(caller, "n")
        assert acquired(await one.fetch(0)) == {0: [(0, 1, 1)]}
        waiting = other.ask(other.fetch_request(0, max_wait_ms=60_000), 2)
        assert isinstance(waiting, Pending)
        set_level(caller, "transaction.version", 1)
        assert (len(caller.broker.share_groups.sessions), waiting.is_done) == (2, False)
        begin = trio.current_time()
        set_level(caller, "share.version", 0)
        assert (await wait_for(waiting)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert trio.current_time() == begin, "who waits is answered at once"
        assert len(caller.broker.share_groups.sessions) == 0
        assert not caller.broker.share_groups.sessions.has_members("g")
        set_level(caller, "share.version", 1)
        assert refused(lambda: one.acknowledge((0, 0, 1, [ACCEPT]))) is ErrorCode.SHARE_SESSION_NOT_FOUND
        one.session_epoch = 0
        assert acquired(await one.fetch(0)) == {0: [(0, 1, 2)]}

    sharing.run(body, tmp_path)


def state_versions(caller: Caller) -> list[int]:
    """Returns the version of each record of __transaction_state."""
    topic = caller.broker.topics.find(TRANSACTION_STATE_TOPIC)
    assert topic is not None
    batches = topic.partitions[0].log.batches(0)
    return [record.value[1] for batch in batches for record in iterate_records(batch) if record.value is not None]


@pytest.mark.parametrize(("level", "version"), [(0, 0), (1, 1), (2, 1)])
def test_records_of_transactions_are_flexible_from_transaction_version_1_on(tmp_path: Path, level: int, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        if level < 2:
            set_level(caller, "transaction.version", level)
        producer = Transactor(caller, version=V1)
        assert producer.add(0) == 0
        assert producer.send(b"a").error_code == 0
        assert producer.end() == 0
        assert state_versions(caller) == [version] * 4

    async def after(caller: Caller) -> None:
        (found,) = caller.ask(DescribeTransactionsRequest(transactional_ids=["pilot"]), 0).transaction_states
        assert (found.transaction_state, found.producer_epoch) == ("CompleteCommit", 0)

    transacting.run(body, tmp_path)
    transacting.run(after, tmp_path)


@pytest.mark.parametrize("level", [0, 1])
def test_producer_is_fenced_as_before_transactions_v2(tmp_path: Path, level: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        set_level(caller, "transaction.version", level)
        producer = Transactor(caller, version=V1)
        assert producer.add(0) == 0
        assert producer.send(b"a").error_code == 0
        again = InitProducerIdRequest(transactional_id="pilot", transaction_timeout_ms=60_000)
        assert caller.ask(again, 4).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        transaction, _ = caller.broker.transactions.describe("pilot")
        assert (transaction.state.title, transaction.producer_epoch) == ("CompleteAbort", 1)
        assert (transaction.client_version, transaction.last_producer_epoch) == (0, None)
        assert producer.send(b"b").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.end() == ErrorCode.PRODUCER_FENCED
        assert caller.ask(again, 4).producer_epoch == 2

    transacting.run(body, tmp_path)
