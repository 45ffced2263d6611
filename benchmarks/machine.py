"""The facts of the machine that a figure means nothing without."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks import load
from compat_tests.harness import jars

_ENOUGH_FREE_BYTES = 512 << 20


def facts(directory: Path) -> dict[str, str]:
    """What a reader needs to know, by name, in the order to print."""
    return {
        "processor": f"{_processor()}, {psutil.cpu_count()} cores, load average {psutil.getloadavg()[0]:.2f} before the run",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "data": f"{_file_system(directory)} at {directory}",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}",
        "wirekafka": f"{version('wirekafka')} at {_commit()}, CPython {platform.python_version()}, trio {version('trio')}",
        "peer": f"Apache {jars.KAFKA}, {_java()}",
        "load": f"librdkafka {_librdkafka()} {_allocator()} and plain sockets, on the same machine",
    }


def settle(directory: Path | None) -> None:
    """Brings the machine into the state from which every row begins: nothing is left to be written, and memory is filled.

    Args:
        directory: for `fill_page_cache`; None to leave memory as it is.
    """
    os.sync()
    if directory is not None:
        fill_page_cache(directory)


def fill_page_cache(directory: Path) -> None:
    """Fills the free memory with pages of a file that holds nothing, as that of a machine which has been up for long is filled.

    What a broker writes needs pages. A virtual machine's free memory may have gone back to its host, a second or two after it
    became free, and the host's page faults cost 4 to 10 times the price of a write: they hit whoever writes next, by chance
    (the same row took 0.075 and 0.263 s of CPU a million, 2026-11). Pages that are taken from such a file cost next to nothing.
    The kernel begins to drop such pages while some GiB are still free, so it takes more than one file.

    Args:
        directory: keeps the files, which take no room on the disk, until all is measured; of no use on a tmpfs.
    """
    buffer = bytearray(1 << 20)
    while (free := psutil.virtual_memory().free) > _ENOUGH_FREE_BYTES:
        path = directory / str(len(list(directory.iterdir())))
        path.touch()
        os.truncate(path, free)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        if psutil.virtual_memory().free > free * 0.9:
            break  # the kernel keeps that much free


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.resolve().is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).partition("\n")[0]


def _java() -> str:
    return _first_line("java", "-version")


def _commit() -> str:
    return _first_line("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")


def _allocator() -> str:
    return "with jemalloc" if load.has_jemalloc() else "with the C library's malloc (libjemalloc-dev halves its cost)"


def _librdkafka() -> str:
    for line in Path("/usr/include/librdkafka/rdkafka.h").read_text().splitlines():
        if line.startswith("#define RD_KAFKA_VERSION"):
            number = int(line.split()[2], 16)
            return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}"
    return "of unknown version"
