"""The OpenAPI document and the page, beside the table of routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from wirekafka.testing.control.form_reader import descriptions_of, forms_in
from wirekafka.testing.control.openapi import document
from wirekafka.testing.control.routes import ROUTES
from wirekafka.testing.faults import FaultSpec

FORMS = sorted(
    {form for route in ROUTES for hint in (route.gives, route.body, route.query) if hint is not None for form in forms_in(hint)},
    key=lambda form: form.__name__,
)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_route_is_described_once() -> None:
    described = [(method.upper(), path) for path, found in document(ROUTES)["paths"].items() for method in found]
    assert sorted(described) == sorted((route.method, route.path) for route in ROUTES)
    names = [found["operationId"] for path in document(ROUTES)["paths"].values() for found in path.values()]
    assert len(names) == len(set(names))


def test_references_lead_to_components() -> None:
    found = {*references(document(ROUTES))}
    assert found == {f"#/components/schemas/{name}" for name in document(ROUTES)["components"]["schemas"]}
    json.dumps(document(ROUTES))


@pytest.mark.parametrize("form", FORMS)
def test_every_field_of_a_form_is_described(form: type[Any]) -> None:
    assert set(descriptions_of(form)) == {field.name for field in fields(form)}


def test_fault_has_the_fields_and_values_of_python() -> None:
    schema = document(ROUTES)["components"]["schemas"]["FaultSpec"]
    assert set(schema["properties"]) == {field.name for field in fields(FaultSpec)}
    assert schema["required"] == []
    assert schema["properties"]["lose"]["enum"] == ["request", "reply", None]
    assert schema["properties"]["times"]["type"] == ["integer", "null"]
    assert schema["properties"]["probability"] == {
        "type": "number",
        "default": 1.0,
        "description": "each matching request is hit by chance; the seed repeats the choices.",
    }


def test_waits_describe_their_parameters_and_their_time_limit() -> None:
    wait = document(ROUTES)["paths"]["/topics/{topic}/records/wait"]["get"]
    assert [(each["name"], each["in"], each["required"]) for each in wait["parameters"]] == [
        ("topic", "path", True),
        ("count", "query", True),
        ("partition", "query", False),
        ("timeout_s", "query", False),
    ]
    assert "504" in wait["responses"]
