"""A stored file is wholly there or not at all, whatever happens to the disk."""

import errno
import os
from pathlib import Path

import pytest
from toy import hooked, mutations

from palimpsest.errors import DamagedArtifact, InputError, StoreError
from palimpsest.run import files

OPERATIONS = ["create", "write", "sync", "rename", "sync"]


def test_a_file_is_flushed_before_it_is_renamed_and_its_folder_after(tmp_path):
    seen: list[str] = []
    with hooked(lambda operation, path: seen.append(operation)):
        files.write_bytes(tmp_path / "a", b"new")
    assert seen == OPERATIONS


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("number", range(len(OPERATIONS)))
def test_a_failing_disk_leaves_the_old_file_or_the_new_one_and_no_third(tmp_path, number, code):
    path = tmp_path / "a"
    files.write_bytes(path, b"old")
    seen: list[str] = []

    def fail(operation: str, _: Path) -> None:
        seen.append(operation)
        if len(seen) == number + 1:
            raise OSError(code, os.strerror(code))

    with hooked(fail), pytest.raises(StoreError):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == (b"new" if number == 4 else b"old")
    assert os.listdir(tmp_path) == ["a"]
    files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path):
    def writer(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        files.write_with(tmp_path / "a", writer)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_recognized_in_the_words_of_safetensors(tmp_path):
    def writer(path: Path) -> None:
        raise ValueError("Error while serializing: I/O error: No space left (os error 28)")

    with pytest.raises(StoreError):
        files.write_with(tmp_path / "a", writer)


def test_a_written_file_has_the_digest_that_is_given_back(tmp_path):
    path = tmp_path / "a"
    for found in (
        files.write_bytes(path, b"abc"),
        files.write_with(path, lambda temporary: temporary.write_bytes(b"abc")),
    ):
        assert found == files.file_digest(path) == files.digest(b"abc")
    assert found.startswith("sha256:ba7816bf8f01cfea")  # FIPS 180-2, appendix B.1


def test_leftovers_are_recognized_and_cleaned_and_nothing_else(tmp_path):
    seen: list[Path] = []
    with hooked(lambda operation, path: seen.extend(tmp_path.glob(".tmp-*"))):
        files.write_bytes(tmp_path / "a", b"1")
    seen[0].write_bytes(b"half")
    (tmp_path / ".tmp-notes").write_bytes(b"mine")
    files.clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".tmp-notes", "a"]


def test_a_second_name_takes_the_place_of_what_was_there(tmp_path):
    files.write_bytes(tmp_path / "a", b"1")
    files.write_bytes(tmp_path / "b", b"2")
    for _ in range(2):  # the second time both names are one file already
        files.link_or_copy(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == b"1"
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_canonical_json_depends_on_the_value_alone():
    assert files.canonical({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'.encode()
    assert files.canonical({"a": 1, "b": 2}) == files.canonical({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800", b"x"])
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(StoreError):
        files.canonical({"key": value})


def test_bytes_that_are_not_the_recorded_ones_are_refused_by_name(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(DamagedArtifact):
        files.read_checked(path, files.digest(b"1"))
    path.write_bytes(b"2")
    with pytest.raises(DamagedArtifact):
        files.read_checked(path, files.digest(b"1"))


HOSTILE = [
    "", ".", "..", "../../x", "a/../b", "/etc/passwd", "a/b", "a\\b", "C:\\x", "C:x", "\\\\host\\x",
    "a\0b", "a\nb", "a.", "a ", " a", "-rf", ".hidden", "a..b", "é",
    "a\u202eb", "{0.__class__}", "%s", "~root", "x" * 101, "$(id)", "a:b", "a|b", "a*",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_leave_the_folder_or_break_a_file_system_are_refused(name):
    assert files.safe_name("task_vector-c0.5,b@2+c=A", "cell id")
    with pytest.raises(InputError) as refusal:
        files.safe_name(name, "cell id")
    assert str(refusal.value).isascii() and str(refusal.value).isprintable()


def test_a_digested_file_comes_back_and_every_change_of_it_is_found(tmp_path):
    path = tmp_path / "a.json"
    value = {"cell": "a", "loss": 0.5}
    files.write_digested(path, value)
    own = files.digest(files.canonical(value))
    assert files.read_digested(path) == value | {"digest": own}
    data = path.read_bytes()
    others = [b" " + data, data + b"\n", b"[]", b"{}", b"[" * 100_000]
    for other in (*mutations(data), *others):
        path.write_bytes(other)
        with pytest.raises(DamagedArtifact):
            files.read_digested(path)
