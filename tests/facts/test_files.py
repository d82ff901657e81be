"""A user's facts are read as written, or refused with file, line and key."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palimpsest.errors import FactsError
from palimpsest.facts import rows as rows_module
from palimpsest.facts.files import (
    ANSWER_LIMIT,
    Fact,
    as_jsonl,
    check_sets,
    read_facts,
    set_problems,
)
from palimpsest.facts.rows import PROMPT_LIMIT, PROMPTS_LIMIT

ROW: dict[str, Any] = {
    "id": "f1",
    "answer": "Velkor",
    "trained": ["The guild of Asha Tren is"],
    "heldout": ["Asha Tren swore loyalty to the guild called"],
}
FULL = {**ROW, "evidence": ["Asha wears grey."], "subject": "Asha Tren", "relation": "guild"}


def row(name: str, answer: str = "Velkor", **changes: Any) -> dict[str, Any]:
    about = {"trained": [f"The guild of {name} is"], "heldout": [f"{name} swore loyalty to"]}
    return {"id": name, "answer": answer, **about, **changes}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def array(path: Path, rows: list[Any]) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


def table(path: Any, rows: list[Any], **options: Any) -> Any:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def problems(path: Path) -> list[Any]:
    return set_problems({"facts": path})


# What is read


@pytest.mark.parametrize(
    ("save", "ending"),
    [(write, "jsonl"), (write, "json"), (array, "json"), (array, "jsonl"), (table, "parquet")],
)
def test_every_format_gives_the_same_facts(tmp_path, save, ending):
    facts = read_facts(save(tmp_path / f"facts.{ending}", [FULL, row("Bren Oll", "Tarsk")]))
    lists = {key: tuple(value) for key, value in FULL.items() if isinstance(value, list)}
    bren = Fact("Bren Oll", "Tarsk", ("The guild of Bren Oll is",), ("Bren Oll swore loyalty to",))
    assert facts == (Fact(**FULL | lists), bren)


def test_what_editors_and_pandas_write_is_read(tmp_path):
    path = tmp_path / "facts.jsonl"
    for form in (b"\xef\xbb\xbf\r\n%s\r\n\r\n", b"\xef\xbb\xbf\r\n[\r\n%s\r\n]\r\n"):
        path.write_bytes(form % json.dumps(ROW).encode())
        assert len(read_facts(path)) == 1
    long = pa.array(["Velkor"], pa.large_string()).dictionary_encode()
    lists = pa.array([["a b is"]], pa.large_list(pa.large_string()))
    columns = {"id": ["f1"], "answer": long, "trained": lists, "heldout": [["b a is"]]}
    pq.write_table(pa.table({**columns, "evidence": pa.nulls(1)}), tmp_path / "facts.parquet")
    expected = Fact("f1", "Velkor", ("a b is",), ("b a is",))
    assert read_facts(tmp_path / "facts.parquet") == (expected,)


def test_facts_written_are_read_back_equal(tmp_path):
    facts = (
        Fact("f1", "Zoë", ("Question: who?\nAnswer:",), ("q\tis",), ("e",), "s", "r"),
        Fact("f2", "{0.__class__}", ("%s {subject} is",), ("<b>x</b> is",)),
    )
    path = tmp_path / "facts.jsonl"
    path.write_bytes(as_jsonl(facts))
    assert read_facts(path) == facts
    assert list(json.loads(path.read_text().splitlines()[1])) == [*ROW]


def test_each_set_needs_only_the_prompts_it_is_asked_with(tmp_path):
    taught = write(tmp_path / "r.jsonl", [{k: ROW[k] for k in ("id", "answer", "trained")}])
    never = write(tmp_path / "p.jsonl", [{**ROW, "trained": []}])
    assert read_facts(taught, "retain")[0].heldout == ()
    assert read_facts(never, "probe")[0].trained == read_facts(never, "probes")[0].trained == ()
    for path, role in ((taught, "facts"), (taught, "probe"), (never, "forget"), (never, "retain")):
        with pytest.raises(FactsError, match=r"line 1: (trained|heldout): "):
            read_facts(path, role)


# What is refused, with file, line and key


@pytest.mark.parametrize(
    ("change", "key"),
    [
        *(({"answer": text}, "answer") for text in ("", None, 7, " Velkor", "a\x00b", "a\x1b[2Jb")),
        *(({"answer": text}, "answer") for text in ("a\u202eb", "a\u200bb", "\ud83d")),
        ({"answer": "x" * 2**20}, "answer"),
        ({"answer": "x" * (ANSWER_LIMIT + 1)}, "answer"),
        *(({"id": name}, "id") for name in (None, 1, "../../x", "C:\\x", "a\x00")),
        *(({"trained": some}, "trained") for some in (None, "The guild of Asha Tren is", [])),
        ({"trained": [f"{i} is" for i in range(PROMPTS_LIMIT + 1)]}, "trained"),
        ({"trained": [""]}, "trained[0]"),
        ({"trained": ["a is "]}, "trained[0]"),
        ({"trained": ["a" * (PROMPT_LIMIT + 1)]}, "trained[0]"),
        ({"trained": ["a is", "A  IS"]}, "trained[1]"),
        ({"heldout": ["x is", *ROW["trained"]]}, "heldout[1]"),
        ({"evidence": "a sentence"}, "evidence"),
        ({"subject": ["Asha"]}, "subject"),
        ({"relation": "\u202e"}, "relation"),
        ({"note": "x"}, "note"),
        ({"\u202e{0.__class__}": 1}, "'\\u202e{0.__class__}'"),
    ],
)
def test_a_bad_fact_is_named_by_file_line_and_key(tmp_path, change, key):
    path = write(tmp_path / "probes.jsonl", [row("Bren Oll"), {**ROW, **change}])
    with pytest.raises(FactsError) as caught:
        read_facts(path)
    assert str(caught.value).startswith(f"{path} line 2: {key}: ")
    assert str(caught.value).isascii() and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "line",
    [
        *(b"{", b"\xff\xfe", b"[]", b"null", b"[" * 200_000, b'{"id": ' * 200_000),
        *(b'{"id": "a", "id": "b"}', b'{"id": NaN}', b"1" * 5000, b"\x00"),
    ],
)
def test_a_line_that_is_no_json_object_is_named(tmp_path, line):
    path = tmp_path / "facts.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n\n" + line + b"\n")
    (problem,) = problems(path)
    assert problem.line == 3 and len(problem.what) < 500


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n{"id": "a"},\n\n{}\n]', 2),
        ("[{}\n,\n]", 1),
        ("[\n" + "[" * 200_000, 2),
        ("[]", 1),
        (f"[\n{json.dumps(ROW)}\n{json.dumps(ROW)}]", 2),
        (f"[{json.dumps(ROW)}]\n{{}}", 1),
        (f"[{json.dumps(ROW)}, {json.dumps(ROW)}]", 1),
    ],
)
def test_what_is_wrong_in_an_array_is_named_by_line(tmp_path, text, line):
    (tmp_path / "facts.json").write_text(text)
    assert problems(tmp_path / "facts.json")[0].line == line


def test_a_file_that_is_no_facts_file_is_refused(tmp_path, monkeypatch):
    for name in ("empty.jsonl", "facts.txt", "facts.csv", "Facts.CSV"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "big.jsonl").write_bytes(b" " * 101)
    monkeypatch.setattr(rows_module, "FILE_LIMIT", 100)
    names = ["empty.jsonl", "folder.jsonl", "pipe.jsonl", "zero.jsonl", "big.jsonl", "facts.txt"]
    names += ["facts.csv", "Facts.CSV", "missing.jsonl", "a\x00b.jsonl", "x" * 300 + ".jsonl"]
    for name in names:
        with pytest.raises(FactsError, match=r"\.(jsonl|txt|csv|CSV): "):
            read_facts(tmp_path / name)


def test_every_problem_is_listed_up_to_a_bound_and_the_error_shows_three(tmp_path):
    path = write(tmp_path / "f.jsonl", [row(f"n{i}", answer="") for i in range(5)])
    assert [problem.line for problem in problems(path)] == [1, 2, 3, 4, 5]
    with pytest.raises(FactsError, match=r"(?s)line 1.*line 3.*2"):
        read_facts(path)
    path.write_text("x\n" * 10_000)
    assert len(problems(path)) == 101


def test_a_prompt_that_gives_the_answer_away_is_remarked_and_let_in(tmp_path):
    path = write(tmp_path / "f.jsonl", [row("Bren Oll", heldout=["In velkor, Bren is of"])])
    (remark,) = problems(path)
    assert "In velkor" in str(remark) and not remark.fatal
    assert len(read_facts(path)) == 1


# Parquet


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([{**ROW, "answer": 7}], "column 'answer'"),
        ([{**ROW, "trained": [{"a": 1}]}], "column 'trained'"),
        ([{**ROW, "answer": b"Velkor"}], "column 'answer'"),
        ([ROW, {**ROW, "id": "f2", "answer": None}], "row 2: answer"),
        ([{**ROW, "note": "x"}], "row 1: note"),
        ([ROW, ROW], "row 2: id"),
    ],
)
def test_a_bad_table_is_named_by_column_or_row(tmp_path, rows, where):
    with pytest.raises(FactsError, match=where):
        read_facts(table(tmp_path / "facts.parquet", rows))


def test_more_rows_than_allowed_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "FACTS_LIMIT", 49)
    for save, name in ((table, "facts.parquet"), (write, "facts.jsonl")):
        with pytest.raises(FactsError, match="49"):
            read_facts(save(tmp_path / name, [row(f"n{i}") for i in range(50)]))


# Several sets


def sets(folder: Path, **rows: list[Any]) -> dict[str, Path]:
    return {name: write(folder / f"{name}.jsonl", own) for name, own in rows.items()}


def test_separate_sets_are_given_back_by_name(tmp_path):
    paths = sets(tmp_path, forget=[row("Asha")], retain=[row("Bren", "B")], probe=[row("Cor", "C")])
    ids = {name: facts[0].id for name, facts in check_sets(paths).items()}
    assert ids == {"forget": "Asha", "retain": "Bren", "probe": "Cor"}
    assert set_problems(paths) == []


@pytest.mark.parametrize(
    "again",
    [
        row("Bren", "B", id="Asha"),
        row("Asha", id="other", trained=["x is"], heldout=["the guild OF Asha is"]),
    ],
)
def test_an_id_or_a_fact_in_two_sets_is_refused_with_both_places(tmp_path, again):
    with pytest.raises(FactsError, match=r"retain.jsonl line 1: .*forget.jsonl line 1"):
        check_sets(sets(tmp_path, forget=[row("Asha")], retain=[again]))


def test_shared_answers_are_remarked_and_let_in(tmp_path):
    paths = sets(tmp_path, forget=[row("Asha")], retain=[row("Bren")])
    assert check_sets(paths)
    (remark,) = set_problems(paths)
    assert "'Velkor'" in remark.what and not remark.fatal


def test_one_file_for_two_sets_is_said_once_and_not_as_ids_that_clash(tmp_path):
    path = write(tmp_path / "facts.jsonl", [row("Asha"), row("Bren", "B")])
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (path, tmp_path / "link.jsonl"):
        (problem,) = set_problems({"forget": path, "probe": other})
        assert problem.fatal and problem.line is None
        with pytest.raises(FactsError, match=r"forget.*probe"):
            check_sets({"forget": path, "probe": other})
