"""The OpenAPI document of the control port, made from the tables of routes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from wirekafka import __version__
from wirekafka.testing.control.form_reader import component_of, forms_in, parameters_of, schema_of
from wirekafka.testing.control.forms import HealthReport, Problem
from wirekafka.testing.control.routes import Route

PATH = "/openapi.json"
_NAME = re.compile(r"\{(\w+)\}")

_PROBLEMS = {
    "400": "The request is wrong",
    "404": "There is no such thing",
    "409": "The broker refuses, or cannot do it now",
}


@cache
def document(routes: tuple[Route[Any], ...]) -> dict[str, Any]:
    """Returns the document of a port that serves these requests.

    Source: OpenAPI Specification 3.1.0.
    """
    paths: dict[str, dict[str, Any]] = {}
    forms: set[type[Any]] = {Problem}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        for hint in (route.gives, route.body):
            forms |= set() if hint is None else forms_in(hint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wirekafka control port",
            "version": __version__,
            "description": "Faults, time, copies and inspection of brokers, for tests.",
        },
        "paths": paths,
        "components": {"schemas": {form.__name__: component_of(form) for form in sorted(forms, key=lambda form: form.__name__)}},
    }


def _operation(route: Route[Any]) -> dict[str, Any]:
    named = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _NAME.findall(route.path)]
    responses = {str(route.status): _response("The answer", route.gives)}
    responses |= {status: _response(text, Problem) for status, text in _PROBLEMS.items()}
    if route.is_wait:
        responses["429"] = _response("There are as many waits as the port serves at a time", Problem)
        responses["504"] = _response("It was not there in time; the error says what was there instead", Problem)
    if route.gives is HealthReport:
        responses["503"] = _response("Clients cannot use the broker", HealthReport)
    operation: dict[str, Any] = {
        "operationId": route.handle.__name__,
        "summary": route.summary,
        "parameters": named + ([] if route.query is None else parameters_of(route.query)),
        "responses": responses,
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema_of(route.body)}}}
    return operation


def _response(text: str, hint: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema_of(hint)}}}
