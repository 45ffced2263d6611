"""The contract of `Files`; the test of the lake in Spark has Hadoop's file system pass it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.pipelines.lake.files import Files, LocalFiles
from wirekafka.tests.pipelines.lake.fake_files import FakeFiles
from wirekafka.tests.pipelines.lake.files_contract import FilesContract


class TestFakeFiles(FilesContract):
    @pytest.fixture
    def files(self) -> Files:
        return FakeFiles()


class TestLocalFiles(FilesContract):
    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        return LocalFiles(tmp_path)
