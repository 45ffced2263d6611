"""Elections, as tables: the state before, the replicas that are online, and the state afterwards."""

import pytest

from wirekafka.controller import elections
from wirekafka.zookeeper.layout.topics import NO_LEADER, RECOVERED, RECOVERING, PartitionState


def state(leader: int, isr: tuple[int, ...], epoch: int = 4, recovery: int = RECOVERED) -> PartitionState:
    return PartitionState(leader, epoch, isr, controller_epoch=1, leader_recovery_state=recovery, unknown={"kept": 1})


@pytest.mark.parametrize(
    ("replicas", "online", "leader", "isr"),
    [
        ((1, 2, 3), {1, 2, 3}, 1, (1, 2, 3)),
        ((3, 1, 2), {1, 2}, 1, (1, 2)),
        ((3,), {3, 4}, 3, (3,)),
    ],
)
def test_first_state_has_all_online_replicas_in_sync(
    replicas: tuple[int, ...], online: set[int], leader: int, isr: tuple[int, ...]
) -> None:
    assert elections.first_state(replicas, online) == PartitionState(leader, 0, isr, 0)


def test_new_partition_without_an_online_replica_has_no_state() -> None:
    assert elections.first_state((1, 2), {3}) is None


@pytest.mark.parametrize(
    ("isr", "online", "leader", "next_isr"),
    [
        ((1, 2, 3), {2, 3}, 2, (2, 3)),
        ((3, 2), {1, 2, 3}, 2, (3, 2)),  # The order of the assignment decides, and the order of the ISR stays.
        ((3,), {1, 3}, 3, (3,)),
    ],
)
def test_offline_election_takes_the_first_in_sync_replica_that_is_online(
    isr: tuple[int, ...], online: set[int], leader: int, next_isr: tuple[int, ...]
) -> None:
    assert elections.offline(state(1, isr), (1, 2, 3), online) == state(leader, next_isr, epoch=5)


@pytest.mark.parametrize(("isr", "online"), [((1,), {2, 3}), ((1, 2), {3}), ((1, 2, 3), set())])
def test_offline_election_never_takes_a_replica_out_of_sync(isr: tuple[int, ...], online: set[int]) -> None:
    assert elections.offline(state(1, isr), (1, 2, 3), online) is None


def test_offline_election_keeps_the_recovery_state() -> None:
    elected = elections.offline(state(NO_LEADER, (1,), recovery=RECOVERING), (1, 2), {1})
    assert elected == state(1, (1,), epoch=5, recovery=RECOVERING)


def test_unclean_election_takes_a_replica_out_of_sync_and_marks_it_as_recovering() -> None:
    elected = elections.unclean(state(1, (1,)), (1, 2, 3), {2, 3})
    assert elected == state(2, (2,), epoch=5, recovery=RECOVERING)


def test_unclean_election_before_release_3_2_marks_nothing() -> None:
    assert elections.unclean(state(1, (1,)), (1, 2), {2}, marks_recovery=False) == state(2, (2,), epoch=5)


def test_unclean_election_is_clean_if_an_in_sync_replica_is_online() -> None:
    assert elections.unclean(state(1, (1, 3)), (1, 2, 3), {2, 3}) == state(3, (3,), epoch=5)


def test_unclean_election_needs_an_online_replica() -> None:
    assert elections.unclean(state(1, (1,)), (1, 2), {3}) is None


@pytest.mark.parametrize(("online", "leader"), [({4, 5, 6}, 5), ({4, 6}, 6), ({1, 4}, None)])
def test_reassignment_elects_among_the_target_replicas_in_sync(online: set[int], leader: int | None) -> None:
    elected = elections.reassign(state(1, (1, 5, 6)), (4, 5, 6), online)
    assert elected == (None if leader is None else state(leader, (1, 5, 6), epoch=5))


@pytest.mark.parametrize(("isr", "online", "is_elected"), [((1, 2), {1, 2}, True), ((2,), {1, 2}, False), ((1, 2), {2}, False)])
def test_preferred_election_takes_the_first_replica_or_none(isr: tuple[int, ...], online: set[int], is_elected: bool) -> None:
    assert elections.preferred(state(2, isr), (1, 2), online) == (state(1, isr, epoch=5) if is_elected else None)


def test_controlled_shutdown_removes_all_brokers_that_shut_down() -> None:
    elected = elections.controlled_shutdown(state(1, (1, 2, 3)), (1, 2, 3), {1, 2, 3}, {1, 2})
    assert elected == state(3, (3,), epoch=5)


@pytest.mark.parametrize(("isr", "online"), [((1,), {1, 2, 3}), ((1, 2), {1, 2, 3}), ((1, 3), {1, 2})])
def test_controlled_shutdown_needs_another_in_sync_replica(isr: tuple[int, ...], online: set[int]) -> None:
    assert elections.controlled_shutdown(state(1, isr), (1, 2, 3), online, {1, 2}) is None
