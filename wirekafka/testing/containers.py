"""A broker in a container, for testcontainers-python: `pip install 'wirekafka[testcontainers]'`.

    with WirekafkaContainer(topics="orders:3") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

How it works: the engine chooses the port when it starts the container. The container is then told, in the file of
`WIREKAFKA_PUBLISHED`, and gives this address to clients that come through the port.

Rules of this file: it runs on every system with Docker, so it imports nothing of the broker.
"""

from __future__ import annotations

import time

from testcontainers.core.container import DockerContainer

PORT = 9092
PUBLISHED_FILE = "/dev/shm/published"  # noqa: S108 - inside the container; in memory, so a read-only file system does no harm
TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05


class WirekafkaContainer(DockerContainer):
    """A container of the image of docker/Dockerfile, with one broker.

    Programs on the host connect to `bootstrap`. Other containers connect to port 9092 of the container's name or alias in a
    network that they share.

    Args:
        image: the name of the image.
        topics: topics that the broker creates, as `wirekafka serve --topics`: "orders:3,payments:1:compact".
        settings: settings of the broker, with `_` for each dot: `WirekafkaContainer(num_partitions=3)`.
    """

    def __init__(self, image: str = "wirekafka", *, topics: str = "", **settings: object) -> None:
        super().__init__(image)
        self.with_exposed_ports(PORT)
        self.with_env("WIREKAFKA_PUBLISHED", f"@{PUBLISHED_FILE}")
        if topics:
            self.with_env("WIREKAFKA_TOPICS", topics)
        for name, value in settings.items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            self.with_env(f"KAFKA_{name.upper()}", shown)

    @property
    def bootstrap(self) -> str:
        """What clients on the host take as `bootstrap.servers`, such as "localhost:32768"."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(PORT)}"

    def start(self) -> WirekafkaContainer:
        """Starts the container; when this method returns, clients can connect.

        Raises:
            RuntimeError: the broker has ended; the text has its log.
            TimeoutError: the broker is not ready after a minute.
        """
        super().start()
        try:
            self._wait_until_ready()
            self._publish()
        except BaseException:
            self.stop()
            raise
        return self

    def _publish(self) -> None:
        """Tells the broker the address that clients of the published port use."""
        done = self.exec(["sh", "-c", f"echo {self.bootstrap} > {PUBLISHED_FILE}"])
        if done.exit_code:
            raise RuntimeError(f"the container cannot be told its address: {done.output.decode(errors='replace')}")

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while b" ready on " not in self.get_logs()[0]:
            container = self.get_wrapped_container()
            container.reload()
            if container.status not in ("created", "running"):
                raise RuntimeError(f"the broker has ended:\n{self._shown_log()}")
            if time.monotonic() > end:
                raise TimeoutError(f"the broker is not ready after {TIMEOUT_SECONDS:.0f} s:\n{self._shown_log()}")
            time.sleep(POLL_SECONDS)

    def _shown_log(self) -> str:
        output, errors = self.get_logs()
        log: str = (output + errors).decode(errors="replace")
        return log
