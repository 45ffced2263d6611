"""The facts of the machine that a reader needs to judge a figure."""

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
    """Returns the facts by name, in the order in which they are printed."""
    return {
        "processor": f"{_processor()}, {psutil.cpu_count()} cores, load average {psutil.getloadavg()[0]:.2f} before the run",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "data": f"{_file_system(directory)} at {directory}",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}",
        "wirekafka": f"{version('wirekafka')} at {_commit()}, CPython {platform.python_version()}, trio {version('trio')}",
        "peer": f"Apache {jars.KAFKA}, in clusters {jars.OLDER_KAFKA}, {_java()}",
        "load": f"librdkafka {_librdkafka()} {_allocator()} and plain sockets, on the same machine",
    }


def settle(directory: Path | None) -> None:
    """Brings the machine into the state in which every row begins: all data is written to disk, and memory is full.

    Args:
        directory: the directory for `fill_page_cache`; None leaves the memory unchanged.
    """
    os.sync()
    if directory is not None:
        fill_page_cache(directory)


def fill_page_cache(directory: Path) -> None:
    """Fills the free memory with pages of an empty file; on a machine that has run for long, the memory is full too.

    A broker that writes needs pages. A virtual machine may return free memory to its host after a second or two. The host's page
    faults then cost 4 to 10 times as much as a write, and slow the next writer by chance (the same row took 0.075 and 0.263 s of
    CPU per million records, 2026-11). Pages that are taken from such a file cost very little. The kernel begins to drop such
    pages while some GiB are still free, so one file is not enough.

    Args:
        directory: holds the files until the end of the run; they take no space on the disk. A tmpfs has no effect.
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
            break  # the kernel keeps this much memory free


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
