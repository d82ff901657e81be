"""YAML is read as one mapping of bounded size, or refused in few words."""

import os
from pathlib import Path

import pytest

from palimpsest.errors import PlanError
from palimpsest.files import YAML_LIMIT, read_yaml


def test_a_document_of_ordinary_size_is_read():
    assert read_yaml("a: {k: 1}\nc: {<<: {k: 1}, j: 2}\n", "keys")["c"] == {"k": 1, "j": 2}
    many = ", ".join(map(str, range(20_000)))
    assert len(read_yaml(f"seeds: [{many}]\n", "keys")["seeds"]) == 20_000


BOMBS = {
    "an alias": "a: &a [x]\nb: *a\n",
    "merged keys": "a: &a {x: 1}\nb: {<<: [*a, *a]}\n",
    "itself": "a: &a [*a]\n",
    "brackets": "a: " + "[" * 800,
    "deep": "a: " + "[" * 20_000 + "]" * 20_000 + "\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_could_stand_for_more_than_it_says_is_refused(tmp_path, name):
    (tmp_path / "plan.yaml").write_text(BOMBS[name])
    for source in (BOMBS[name], tmp_path / "plan.yaml"):
        with pytest.raises(PlanError) as caught:
            read_yaml(source, "keys")
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text",
    ["- a\n- b\n", "a: [\n", "\x00\n", "1: 2\n", "\n", "a: 1\nb: 2\na: 3\n", "a: 1\n---\nb: 2\n",
     "? [1]\n: 2\n", "a: !!python/object/apply:os.system [ls]\n", "a: 2020-99-99\n"],
)  # fmt: skip
def test_yaml_that_is_no_mapping_of_single_keys_is_refused(text):
    with pytest.raises(PlanError, match=r"^the text"):
        read_yaml(text, "keys")


def test_what_is_no_regular_file_of_ordinary_size_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (YAML_LIMIT + 1))
    for path in (tmp_path / "pipe", tmp_path / "large", tmp_path, Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(PlanError):
            read_yaml(path, "keys")
