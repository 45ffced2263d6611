from pathlib import Path

import pytest

from wirekafka.api.describe_cluster import DescribeClusterRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller, run


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_tells_the_one_broker(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(DescribeClusterRequest(), version)
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, caller.broker.cluster_id, 7)
        (broker,) = response.brokers
        assert (broker.broker_id, broker.host, broker.port, broker.rack) == (7, "127.0.0.1", 9092, "here")
        assert response.cluster_authorized_operations == -(2**31)
        asked = caller.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        assert asked.cluster_authorized_operations == 0b1111110100000

    run(body, tmp_path, node_id="7", broker_rack="here")


def test_describe_cluster_tells_the_advertised_address(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        (broker,) = caller.ask(DescribeClusterRequest(), 0).brokers
        assert (broker.host, broker.port) == ("kafka.example", 19092)

    run(body, tmp_path, advertised_listeners="PLAINTEXT://kafka.example:19092")


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_describe_cluster_of_other_endpoints_is_refused(tmp_path: Path, endpoint_type: int, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        response = caller.ask(DescribeClusterRequest(endpoint_type=endpoint_type, include_fenced_brokers=True), 2)
        assert response.error_code == code
        assert response.brokers == []

    run(body, tmp_path)
