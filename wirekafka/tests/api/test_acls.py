from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.create_acls import AclCreation, CreateAclsRequest
from wirekafka.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from wirekafka.api.describe_acls import DescribeAclsRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.wire.types import Message

VERSIONS = range(4)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("request_of_acls", "results_of"),
    [
        (DescribeAclsRequest(), lambda response: [response]),
        (CreateAclsRequest(creations=[AclCreation(), AclCreation()]), lambda response: response.results),
        (DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()]), lambda response: response.filter_results),
    ],
    ids=["DescribeAcls", "CreateAcls", "DeleteAcls"],
)
def test_request_about_acls_is_told_that_security_is_disabled(
    tmp_path: Path, request_of_acls: Message, results_of: Any, version: int
) -> None:
    async def test(caller: Caller) -> None:
        results = results_of(caller.ask(request_of_acls, version))
        assert len(results) in (1, 2)
        for result in results:
            assert result.error_code == ErrorCode.SECURITY_DISABLED
            assert result.error_message == "No Authorizer is configured."

    run(test, tmp_path)
