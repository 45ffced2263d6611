import gc

import pytest

from wirekafka.pending import Pending


def test_reply_reaches_who_asked_before_it_was_there_and_who_asks_after() -> None:
    heard: list[int] = []
    early: Pending[int] = Pending()
    early.then(heard.append)
    assert not early.is_done
    assert early.complete(1)
    late: Pending[int] = Pending()
    assert late.complete(2)
    late.then(heard.append)
    assert heard == [1, 2]


def test_reply_is_given_once() -> None:
    heard: list[int] = []
    pending: Pending[int] = Pending()
    pending.then(heard.append)
    assert pending.complete(1)
    assert not pending.complete(2)
    assert heard == [1]


def test_reply_that_nobody_waits_for_any_more_is_dropped_and_let_go_of_once() -> None:
    heard: list[int] = []
    abandoned: list[str] = []
    pending: Pending[int] = Pending(on_abandon=lambda: abandoned.append("gone"))
    pending.then(heard.append)
    pending.abandon()
    pending.abandon()
    assert not pending.complete(1)
    assert (heard, abandoned) == ([], ["gone"])


def test_reply_that_was_given_cannot_be_abandoned() -> None:
    abandoned: list[str] = []
    pending: Pending[int] = Pending(on_abandon=lambda: abandoned.append("gone"))
    pending.complete(1)
    pending.abandon()
    assert not abandoned


def test_mapped_reply_is_made_from_the_first_and_abandons_it() -> None:
    heard: list[str] = []
    first: Pending[int] = Pending()
    first.map(str).then(heard.append)
    first.complete(7)
    assert heard == ["7"]
    abandoned: list[str] = []
    second: Pending[int] = Pending(on_abandon=lambda: abandoned.append("gone"))
    second.map(str).abandon()
    assert abandoned == ["gone"]
    assert not second.complete(7)


def test_reply_mapped_to_a_later_one_is_given_by_the_later_one() -> None:
    heard: list[str] = []
    first: Pending[int] = Pending()
    later: Pending[str] = Pending()
    mapped: Pending[str] = first.map(lambda _: later)
    mapped.then(heard.append)
    first.complete(7)
    assert not heard
    later.complete("later")
    assert heard == ["later"]


def test_reply_mapped_to_a_later_one_abandons_the_later_one() -> None:
    abandoned: list[str] = []
    first: Pending[int] = Pending()
    later: Pending[str] = Pending(on_abandon=lambda: abandoned.append("later"))
    mapped: Pending[str] = first.map(lambda _: later)
    first.complete(7)
    mapped.abandon()
    assert abandoned == ["later"]
    assert not mapped.complete("too late")


def test_reply_that_was_given_leaves_no_work_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        pending: Pending[int] = Pending()
        mapped = pending.map(str)
        mapped.then(len)
        pending.complete(7)
        del pending, mapped
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_reply_holds_its_connection_until_it_releases_it_once() -> None:
    heard: list[str] = []
    pending: Pending[int] = Pending()
    pending.then(lambda reply: heard.append(str(reply)), lambda: heard.append("released"))
    assert pending.holds_connection
    pending.release_connection()
    pending.release_connection()
    assert not pending.holds_connection
    pending.complete(7)
    assert heard == ["released", "7"]


def test_connection_released_before_the_reply_is_awaited_is_released_without_a_call() -> None:
    released: list[str] = []
    pending: Pending[int] = Pending()
    pending.release_connection()
    pending.then(lambda reply: None, lambda: released.append("again"))
    pending.release_connection()
    assert not released


def test_mapped_reply_holds_the_connection_as_the_first_does() -> None:
    released: list[str] = []
    before: Pending[int] = Pending()
    before.release_connection()
    assert not before.map(str).holds_connection
    later: Pending[int] = Pending()
    mapped = later.map(str)
    mapped.then(lambda reply: None, lambda: released.append("mapped"))
    assert mapped.holds_connection
    later.release_connection()
    assert not mapped.holds_connection
    assert released == ["mapped"]


def test_reply_that_was_given_or_abandoned_releases_nothing() -> None:
    released: list[str] = []
    for end in ("complete", "abandon"):
        pending: Pending[int] = Pending()
        pending.then(lambda reply: None, lambda: released.append("late"))
        pending.complete(7) if end == "complete" else pending.abandon()
        pending.release_connection()
    assert not released


def test_reply_completed_with_a_pending_reply_follows_it() -> None:
    heard: list[int] = []
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()
    first.then(heard.append)
    first.complete_with(second)
    assert not first.is_done
    second.complete(7)
    assert heard == [7]


@pytest.mark.parametrize("is_abandoned_before", [False, True])
def test_reply_completed_with_a_pending_reply_abandons_it(is_abandoned_before: bool) -> None:
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()
    if is_abandoned_before:
        first.abandon()
    first.complete_with(second)
    first.abandon()
    assert second.is_done
