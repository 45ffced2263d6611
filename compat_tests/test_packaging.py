"""The wheel as a package index would receive it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"

pytestmark = pytest.mark.wirekafka_only("its packaging")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_has_the_package_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "wirekafka").rglob("*.py")}
    shipped = {name for name in names if name.endswith(".py")}
    assert shipped == {name for name in sources if not name.startswith("wirekafka/tests/")}
    assert "wirekafka/py.typed" in names
    assert not [name for name in names if "test" in Path(name).parts]


def test_wheel_starts_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from wirekafka.cli import main; main(['config', 'list', 'log.dirs'])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("log.dirs (broker, ")


def test_metadata_says_what_an_index_shows(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "wirekafka"
    assert metadata["Summary"]
    assert metadata["Author"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Keywords"]
    assert metadata.get_all("Classifier")
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL") or []} == {"Source", "Documentation", "Issues"}


def test_links_of_the_readme_are_absolute_and_lead_to_files_that_are_there() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    links = re.findall(r"\]\(([^)]*)\)", README.read_text())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    paths = [re.sub(r"^/(blob|tree)/main/", "", link.removeprefix(source)) for link in links if link.startswith(source)]
    assert len(paths) == len(links)
    assert [path for path in paths if not (ROOT / path).exists()] == []
