import pytest

from wirekafka.coordinator.share_delivery.sessions import MAX_EPOCH, SessionKey, ShareSessions
from wirekafka.errors import ErrorCode, KafkaError

T = b"t" * 16
KEY = SessionKey("g", "m")


def test_session_is_opened_once_for_a_member() -> None:
    sessions = ShareSessions(2)
    first = sessions.open(KEY, [(T, 0)], {})
    assert sessions.open(KEY, [(T, 1)], {}) is not first
    assert len(sessions) == 1
    assert list(sessions.get(KEY).partitions) == [(T, 1)]


def test_session_beyond_the_limit_is_refused() -> None:
    sessions = ShareSessions(1)
    sessions.open(KEY, [], {})
    with pytest.raises(KafkaError) as raised:
        sessions.open(SessionKey("g", "n"), [], {})
    assert raised.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.open(KEY, [], {})


def test_session_goes_on_with_the_next_epoch_only() -> None:
    sessions = ShareSessions(1)
    with pytest.raises(KafkaError) as raised:
        sessions.proceed(KEY, 1)
    assert raised.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
    sessions.open(KEY, [], {})
    for epoch in (0, 2):
        with pytest.raises(KafkaError) as raised:
            sessions.proceed(KEY, epoch)
        assert raised.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.proceed(KEY, 1).epoch == 2


def test_epoch_after_the_greatest_is_one() -> None:
    session = ShareSessions(1).open(KEY, [], {})
    session.epoch = MAX_EPOCH
    session.advance_epoch()
    assert session.epoch == 1


def test_partitions_take_turns_to_be_first() -> None:
    session = ShareSessions(1).open(KEY, [(T, 0), (T, 1), (T, 2)], {})
    assert [session.rotated(epoch)[0][1] for epoch in range(5)] == [0, 1, 2, 0, 1]
    session.update([(T, 3)], [(T, 0), (T, 9)])
    assert [index for _, index in session.rotated(0)] == [1, 2, 3]


def test_answer_tells_of_records_of_errors_and_of_what_comes_after_these() -> None:
    session = ShareSessions(1).open(KEY, [(T, 0)], {})

    def must_tell(*, has_records: bool = False, is_error: bool = False) -> bool:
        return session.must_tell((T, 0), has_records=has_records, is_error=is_error)

    assert not must_tell()
    assert must_tell(has_records=True)
    assert must_tell(is_error=True)
    assert must_tell()
    assert not must_tell()


def test_group_has_members_until_the_last_session_ends() -> None:
    sessions = ShareSessions(9)
    sessions.open(KEY, [], {})
    sessions.open(SessionKey("g", "n"), [], {})
    sessions.remove(KEY)
    assert sessions.has_members("g")
    assert sessions.remove(KEY) is None
    sessions.remove(SessionKey("g", "n"))
    assert not sessions.has_members("g")
