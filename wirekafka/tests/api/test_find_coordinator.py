from pathlib import Path

import pytest

from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.errors import ErrorCode
from wirekafka.names import format_topic_id, new_topic_id
from wirekafka.tests.api.data_plane import Caller, run


@pytest.mark.parametrize("version", range(4))
def test_find_coordinator_of_a_group_is_this_broker(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        found = caller.ask(FindCoordinatorRequest(key="g"), version)
        assert (found.error_code, found.node_id, found.host, found.port) == (0, caller.broker.node_id, "127.0.0.1", 9092)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(4, 7))
def test_find_coordinator_of_several_groups_answers_each(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        found = caller.ask(FindCoordinatorRequest(coordinator_keys=["g", "h"]), version).coordinators
        assert [(each.key, each.error_code, each.node_id, each.port) for each in found] == [
            ("g", 0, caller.broker.node_id, 9092),
            ("h", 0, caller.broker.node_id, 9092),
        ]

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(1, 7))
def test_find_coordinator_of_a_transactional_id_is_this_broker(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(FindCoordinatorRequest(key="x", key_type=1, coordinator_keys=["x"]), version)
        found = response.coordinators[0] if version >= 4 else response
        assert (found.error_code, found.node_id, found.host, found.port) == (0, caller.broker.node_id, "127.0.0.1", 9092)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [2, 9])
def test_find_coordinator_of_another_kind_is_refused_with_the_reason(tmp_path: Path, version: int, key_type: int) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(FindCoordinatorRequest(key="x", key_type=key_type, coordinator_keys=["x"]), version)
        found = response.coordinators[0] if version >= 4 else response
        assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.INVALID_REQUEST, -1, "", -1)
        assert found.error_message

    run(body, tmp_path)


def test_find_coordinator_of_a_share_partition_is_this_broker(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        key = f"a:group:{format_topic_id(new_topic_id())}:7"
        (found,) = caller.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6).coordinators
        assert (found.error_code, found.node_id, found.port) == (0, caller.broker.node_id, 9092)

    run(body, tmp_path)


def test_find_coordinator_of_a_share_partition_is_refused_before_there_were_any(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        key = f"group:{format_topic_id(new_topic_id())}:7"
        (found,) = caller.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 5).coordinators
        assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)

    run(body, tmp_path)
