"""What every implementation of `Files` does; a test class of each implementation has a fixture `files`, which is empty."""

from __future__ import annotations

import pytest

from wirekafka.pipelines.lake.files import Files


class FilesContract:
    def test_file_is_read_as_it_was_written_last(self, files: Files) -> None:
        files.write("a/b/c", b"first, and longer")
        files.write("a/b/c", b"second")
        assert files.read("a/b/c") == b"second"

    def test_missing_file_is_read_as_none(self, files: Files) -> None:
        assert files.read("a/b") is None

    def test_claim_gives_the_file_another_name(self, files: Files) -> None:
        files.write("staging/x", b"content")
        files.claim("staging/x", "commits/1")
        assert files.read("commits/1") == b"content"

    def test_claim_of_a_name_that_exists_is_refused(self, files: Files) -> None:
        files.write("staging/x", b"one")
        files.write("staging/y", b"two")
        files.claim("staging/x", "commits/1")
        with pytest.raises(FileExistsError):
            files.claim("staging/y", "commits/1")
        assert files.read("commits/1") == b"one"
        assert files.read("staging/y") == b"two"

    def test_claim_with_a_missing_source_is_refused(self, files: Files) -> None:
        with pytest.raises(FileNotFoundError):
            files.claim("staging/x", "commits/1")
        assert files.names("commits") == []

    def test_move_takes_the_file_to_a_new_directory(self, files: Files) -> None:
        files.write("staging/x", b"content")
        files.move("staging/x", "table/date=1/x")
        assert files.read("table/date=1/x") == b"content"
        assert files.read("staging/x") is None

    def test_repeated_move_changes_nothing(self, files: Files) -> None:
        files.write("staging/x", b"content")
        files.move("staging/x", "table/x")
        files.move("staging/x", "table/x")
        assert files.read("table/x") == b"content"

    def test_move_of_a_copy_that_is_in_place_removes_the_source(self, files: Files) -> None:
        files.write("staging/x", b"content")
        files.write("table/x", b"content")
        files.move("staging/x", "table/x")
        assert files.read("table/x") == b"content"
        assert files.read("staging/x") is None

    def test_delete_removes_a_file_or_a_whole_directory(self, files: Files) -> None:
        for path in ("a/1", "a/b/2", "ab/3"):
            files.write(path, b"")
        files.delete("a")
        files.delete("ab/3")
        assert (files.read("a/1"), files.read("a/b/2"), files.read("ab/3")) == (None, None, None)

    def test_delete_of_a_missing_path_does_nothing(self, files: Files) -> None:
        files.delete("a/b")

    def test_names_are_those_of_one_directory(self, files: Files) -> None:
        for path in ("d/b", "d/a/x", "d/a/y", "e"):
            files.write(path, b"")
        assert files.names("d") == ["a", "b"]
        assert files.names("") == ["d", "e"]
        assert files.names("missing") == []

    def test_sizes_are_those_of_all_files_below_a_directory_that_are_not_hidden(self, files: Files) -> None:
        for path in ("d/b", "d/a/x", "d/_SUCCESS", "d/.b.crc", "d/_temporary/0/z", "e"):
            files.write(path, b"1234")
        assert files.sizes("d") == {"d/b": 4, "d/a/x": 4}
        assert files.sizes("missing") == {}
