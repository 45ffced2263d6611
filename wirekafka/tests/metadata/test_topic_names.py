import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.topic_names import check_topic_name, collision_key, is_valid_topic_name


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "...", "x" * 249, "__consumer_offsets"])
def test_topic_name_of_legal_characters_is_valid(name: str) -> None:
    check_topic_name(name)
    assert is_valid_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "a\n", "ä", "a,b", "a\0"])
def test_topic_name_otherwise_is_invalid(name: str) -> None:
    assert not is_valid_topic_name(name)
    with pytest.raises(KafkaError) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_collision_key_is_shared_by_names_that_differ_in_dots_only() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a-b") is None
