"""The examples of docs/testing.md in examples/testing/, each run as its first lines say."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.conftest import skip_or_fail
from wirekafka.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "testing"
PLUGIN = "wirekafka.testing.pytest_plugin"
WITH_FASTSTREAM = "test_with_faststream.py"
WITH_SPARK = "test_with_pyspark.py"
WITH_UNITTEST = "test_with_unittest.py"

pytestmark = [pytest.mark.wirekafka_only("the examples of its library for tests"), pytest.mark.timeout(300)]


def run(*arguments: str) -> str:
    """Runs Python in the directory of the project; returns what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_pytest(*arguments: str) -> str:
    # The package registers its plugin when it is installed; a checkout beside an older installation names it.
    plugins = [] if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ["-p", PLUGIN]
    return run("-m", "pytest", *plugins, "-p", "no:cacheprovider", *arguments)


def test_examples_of_pytest_pass() -> None:
    others = [WITH_SPARK, WITH_UNITTEST]
    if importlib.util.find_spec("faststream") is None:
        others.append(WITH_FASTSTREAM)
    printed = run_pytest("-v", "examples/testing", *(f"--ignore=examples/testing/{each}" for each in others))
    passed = set(re.findall(r"(\w+\.py)::\S+ PASSED", printed))
    assert passed == {path.name for path in EXAMPLES.glob("test_*.py")} - set(others)
    if WITH_FASTSTREAM in others:
        skip_or_fail("all but that of FastStream, which make test installs")


def test_example_of_unittest_passes() -> None:
    assert re.search(r"^OK$", run("-m", "unittest", f"examples/testing/{WITH_UNITTEST}"), re.MULTILINE)


@pytest.mark.java
@pytest.mark.xdist_group("spark")
def test_example_of_pyspark_passes_in_the_session_that_tests_share(
    spark: SparkSession, kafka_broker: EmbeddedBroker, kafka_topic: str, tmp_path: Path
) -> None:
    load(WITH_SPARK).test_query_goes_on_from_its_checkpoint(spark, kafka_broker, kafka_topic, tmp_path)


def test_example_of_kafkajs_passes(tmp_path: Path) -> None:
    """Node and npm are no Debian packages of CI: npm has 400 others of its own."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 20:
        pytest.skip(f"the example needs Node 20, and this is {version.strip()}")
    project = tmp_path / "kafkajs"
    shutil.copytree(EXAMPLES / "kafkajs", project, ignore=shutil.ignore_patterns("node_modules"))
    install = [npm, "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=20000"]
    installed = subprocess.run(install, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install kafkajs: {installed.stderr.strip()[-200:]}")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = os.environ | {"WIREKAFKA": f"{sys.executable} -m wirekafka", "PYTHONPATH": paths}
    done = subprocess.run([npm, "test"], cwd=project, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"pass 3$", done.stdout, re.MULTILINE)


def load(example: str) -> Any:
    """Returns the module of an example."""
    spec = importlib.util.spec_from_file_location(Path(example).stem, EXAMPLES / example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long("the example runs above in a session that is there already")
@pytest.mark.java
@pytest.mark.xdist_group("spark")
def test_example_of_pyspark_passes_with_a_session_of_its_own() -> None:
    assert re.search(r"^=+ 1 passed", run_pytest(f"examples/testing/{WITH_SPARK}"), re.MULTILINE)


def test_each_example_is_in_the_page_about_tests() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert [path.name for path in EXAMPLES.glob("test_*.py") if path.name not in page] == []
