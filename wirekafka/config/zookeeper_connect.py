"""The form of `zookeeper.connect`: HOST:PORT,HOST:PORT/CHROOT.

Source: org.apache.zookeeper.client.ConnectStringParser, org.apache.zookeeper.common.PathUtils.
"""

from __future__ import annotations

from urllib.parse import urlsplit


def split_connect(connect: str) -> tuple[str, str]:
    """Splits `zookeeper.connect` into the hosts and the chroot, which is empty or begins with a slash.

    Raises:
        ValueError: there is no host, a port is no port, or the chroot is no path of ZooKeeper.
    """
    hosts, _, path = connect.partition("/")
    if not all(host.strip() for host in hosts.split(",")):
        raise ValueError(f"zookeeper.connect must be host:port,host:port/chroot, not {connect!r}")
    for host in hosts.split(","):
        _check_port(host.strip())
    names = path.split("/") if path else []
    if any(name in ("", ".", "..") for name in names):
        raise ValueError(f"zookeeper.connect has the chroot /{path}, which is no path of ZooKeeper")
    return hosts, "".join(f"/{name}" for name in names)


def _check_port(host: str) -> None:
    """Raises ValueError unless `host` has no port, or one that ZooKeeper may have. An address of IPv6 is in brackets."""
    try:
        port = urlsplit(f"zk://{host}").port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"zookeeper.connect has the server {host}, whose port is not from 1 to 65535")
