"""A client of the control port, from Python's standard library."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def ask(method: str, url: str, body: object = None) -> tuple[int, Any]:
    """Returns the status and the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    asked = Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(asked, timeout=60) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
