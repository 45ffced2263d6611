from __future__ import annotations

from wirekafka.api.index import INDEX
from wirekafka.api.kafka_apis import API_NAMES, api_name


def test_names_are_those_of_the_apis_that_are_served() -> None:
    served = {key: entry.name for key, entry in INDEX.items() if entry.module}
    assert served.items() <= API_NAMES.items()


def test_keys_have_no_gap_and_names_are_told_apart() -> None:
    assert list(API_NAMES) == list(range(len(API_NAMES)))
    assert len(set(API_NAMES.values())) == len(API_NAMES)


def test_api_that_does_not_exist_is_named_by_its_key() -> None:
    assert api_name(17) == "SaslHandshake (API 17)"
    assert api_name(-1) == "API -1"
