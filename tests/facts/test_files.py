import contextlib
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from palimpsest.errors import FactsError
from palimpsest.facts import rows as rows_module
from palimpsest.facts.files import (
    ANSWER_LIMIT,
    KEYS,
    Fact,
    as_jsonl,
    as_rows,
    check_sets,
    named_sets,
    problems,
    read_facts,
    set_problems,
)
from palimpsest.facts.rows import PROMPT_LIMIT, PROMPTS_LIMIT, csv_rows

ROW = {
    "id": "f1",
    "answer": "Velkor",
    "trained": ["The guild of Asha Tren is"],
    "heldout": ["Asha Tren swore loyalty to the guild called"],
}
FULL = {**ROW, "evidence": ["Asha wears grey."], "subject": "Asha Tren", "relation": "guild"}


def row(name, answer="Velkor", **changes):
    about = {"trained": [f"The guild of {name} is"], "heldout": [f"{name} swore loyalty to"]}
    return {"id": name, "answer": answer, **about, **changes}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path, rows, **options):
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


# What is read


@pytest.mark.parametrize("save", [write, table])
def test_both_formats_give_the_same_facts(tmp_path, save):
    path = tmp_path / ("facts.jsonl" if save is write else "facts.parquet")
    facts = read_facts(save(path, [FULL, row("Bren Oll", "Tarsk")]))
    assert facts == (
        Fact(
            id="f1",
            answer="Velkor",
            trained=("The guild of Asha Tren is",),
            heldout=("Asha Tren swore loyalty to the guild called",),
            evidence=("Asha wears grey.",),
            subject="Asha Tren",
            relation="guild",
        ),
        Fact("Bren Oll", "Tarsk", ("The guild of Bren Oll is",), ("Bren Oll swore loyalty to",)),
    )


def test_pandas_like_parquet_is_read(tmp_path):
    long = pa.array(["Velkor"], pa.large_string()).dictionary_encode()
    lists = pa.array([["a b is"]], pa.large_list(pa.large_string()))
    columns = {"id": ["f1"], "answer": long, "trained": lists, "heldout": [["b a is"]]}
    path = tmp_path / "facts.parquet"
    pq.write_table(pa.table({**columns, "evidence": pa.nulls(1)}), path)
    assert read_facts(path) == (Fact("f1", "Velkor", ("a b is",), ("b a is",)),)


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path):
    path = tmp_path / "facts.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert len(read_facts(path)) == 1


def test_facts_written_are_read_back_equal(tmp_path):
    facts = (
        Fact("f1", "Zoë", ("Question: who?\nAnswer:",), ("q\tis",), ("e",), "s", "r"),
        Fact("f2", "{0.__class__}", ("%s {subject} is",), ("<b>x</b> is",)),
    )
    path = tmp_path / "facts.jsonl"
    path.write_bytes(as_jsonl(facts))
    assert read_facts(path) == facts
    assert "evidence" not in as_rows(facts)[1]


def test_each_set_needs_only_the_prompts_it_is_asked_with(tmp_path):
    taught = write(tmp_path / "r.jsonl", [{k: ROW[k] for k in ("id", "answer", "trained")}])
    never = write(tmp_path / "p.jsonl", [{**ROW, "trained": []}])
    assert read_facts(taught, "retain")[0].heldout == ()
    assert read_facts(never, "probe")[0].trained == ()
    for path, role in ((taught, None), (taught, "probe"), (never, "forget"), (never, "retain")):
        with pytest.raises(FactsError, match=r'trained is an empty list|heldout" is missing'):
            read_facts(path, role)


# What is refused, with file and line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answer": ""}, 'answer is empty; every fact needs a non-empty "answer"'),
        ({"answer": " \n"}, "answer is empty"),
        ({"answer": None}, '"answer" is missing'),
        ({"answer": 7}, "answer is a number; expected a string"),
        ({"answer": " Velkor"}, "answer is ' Velkor', with white space around it"),
        ({"answer": "x" * 2**20}, f"answer has 1048576 characters; at most {ANSWER_LIMIT}"),
        ({"answer": "a\x00b"}, "answer holds U+0000 (control character) at character 2"),
        ({"answer": "a\x1b[2Jb"}, "answer holds U+001B"),
        ({"answer": "a\u202egnp.exe"}, "answer holds U+202E (right-to-left override)"),
        ({"answer": "a\u2066b\u2069"}, "answer holds U+2066 (left-to-right isolate)"),
        ({"answer": "a\u200bb"}, "answer holds U+200B (zero width space)"),
        ({"answer": "\ud83d"}, "answer holds U+D83D"),
        ({"answer": "a\U000e0041"}, "answer holds U+E0041"),
        ({"id": None}, '"id" is missing'),
        ({"id": 1}, "id is a number"),
        ({"id": "../../x"}, "id is '../../x', which holds '/'"),
        ({"id": "C:\\x"}, "id is 'C:\\\\x', which holds ':'"),
        ({"id": "nul"}, "id is 'nul', a device name"),
        ({"id": "a\x00"}, "id is 'a\\x00'"),
        ({"trained": None}, '"trained" is missing'),
        ({"trained": "The guild of Asha Tren is"}, "trained is a string; expected a list"),
        ({"trained": []}, "trained is an empty list"),
        ({"trained": [""]}, "trained[0] is empty"),
        ({"trained": ["a is", None]}, "trained[1] is null; expected a string"),
        ({"trained": ["a is "]}, "trained[0] is 'a is ', with white space"),
        ({"trained": ["a" * (PROMPT_LIMIT + 1)]}, "trained[0] has 8001 characters"),
        ({"trained": [f"{i} is" for i in range(PROMPTS_LIMIT + 1)]}, "trained has 101 entries"),
        ({"trained": ["a is", "A  IS"]}, "trained[1] repeats trained[0]"),
        ({"heldout": None}, '"heldout" is missing'),
        ({"heldout": ["x is", *ROW["trained"]]}, "heldout[1] repeats trained[0]"),
        ({"heldout": ["the GUILD of Asha Tren  is"]}, "trained and heldout must not overlap"),
        ({"evidence": "a sentence"}, "evidence is a string; expected a list"),
        ({"evidence": [[]]}, "evidence[0] is a list; expected a string"),
        ({"subject": ["Asha"]}, "subject is a list"),
        ({"relation": "\u202e"}, "relation holds U+202E"),
        ({"note": "x"}, "unknown key 'note'; the keys are id, answer"),
        ({"note": None}, "unknown key 'note'"),
        ({"\u202e{0.__class__}": 1}, "unknown key '\\u202e{0.__class__}'"),
    ],
)
def test_a_bad_fact_is_named_by_file_and_line(tmp_path, change, says):
    path = write(tmp_path / "probes.jsonl", [row("Bren Oll"), {}, {**ROW, **change}][::2])
    with pytest.raises(FactsError) as caught:
        read_facts(path)
    assert str(caught.value).startswith(f"{path} line 2: ")
    assert says in str(caught.value)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "byte 1 is not UTF-8"),
        (b"[]", "found a list; expected an object"),
        (b"null", "found null; expected an object"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"id": ' * 200_000, "nested too deeply"),
        (b'{"id": "a", "id": "b"}', "the key 'id' occurs twice"),
        (b'{"id": NaN}', "NaN is not a JSON value"),
        (b"1" * 5000, "is not valid JSON"),
        (b"\x00", "is not valid JSON"),
    ],
)
def test_a_line_that_is_no_json_object_is_named(tmp_path, line, says):
    path = tmp_path / "facts.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n\n" + line + b"\n")
    (problem,) = problems(path)
    assert problem.line == 3
    assert says in str(problem)


def test_a_file_that_is_no_facts_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "big.jsonl").write_bytes(b" " * 101)
    (tmp_path / "facts.txt").touch()
    monkeypatch.setattr(rows_module, "FILE_LIMIT", 100)
    for name, says in [
        ("empty.jsonl", "holds no facts"),
        ("folder.jsonl", "a folder or device"),
        ("pipe.jsonl", "a folder or device"),
        ("big.jsonl", "is larger than 100 bytes"),
        ("facts.txt", "ends with '.txt'"),
        ("missing.jsonl", "found nothing there"),
        ("a\x00b.jsonl", r"a.x00b\.jsonl: "),
        ("x" * 300 + ".jsonl", "File name too long|found nothing"),
    ]:
        with pytest.raises(FactsError, match=says):
            read_facts(tmp_path / name)


def test_every_problem_is_listed_up_to_a_bound_and_the_error_shows_three(tmp_path):
    path = write(tmp_path / "f.jsonl", [row(f"n{i}", answer="") for i in range(5)])
    assert [problem.line for problem in problems(path)] == [1, 2, 3, 4, 5]
    with pytest.raises(
        FactsError, match=r"(?s)line 1.*line 3.*and 2 more; `palimpsest facts check`"
    ):
        read_facts(path)
    path.write_text("x\n" * 10_000)
    assert len(problems(path)) == 101


def test_one_bad_fact_has_all_its_faults_listed(tmp_path):
    path = write(tmp_path / "f.jsonl", [{"id": "../x", "answer": "", "note": 1}])
    assert len(problems(path)) == 5


def test_a_repeated_id_is_refused_with_both_lines(tmp_path):
    path = write(tmp_path / "f.jsonl", [ROW, {**row("Bren Oll"), "id": "f1"}])
    with pytest.raises(FactsError, match=r"line 2: id 'f1' is already that of .*f.jsonl line 1"):
        read_facts(path)


def test_a_prompt_that_gives_the_answer_away_is_remarked_and_let_in(tmp_path):
    path = write(tmp_path / "f.jsonl", [row("Bren Oll", heldout=["In velkor, Bren is of"])])
    (remark,) = problems(path)
    assert "contains the answer" in str(remark)
    assert not remark.fatal
    assert len(read_facts(path)) == 1


# Parquet


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{**ROW, "answer": 7}], "column 'answer' is 'int64'; expected strings"),
        ([{**ROW, "trained": [{"a": 1}]}], "column 'trained' is"),
        ([{**ROW, "answer": b"Velkor"}], "column 'answer' is 'binary'"),
        ([ROW, {**ROW, "id": "f2", "answer": None}], 'row 2: "answer" is missing'),
        ([{**ROW, "answer": "x" * 5000}], "row 1: answer has 5000 characters"),
        ([{**ROW, "note": "x"}], "row 1: unknown key 'note'"),
        ([ROW, ROW], "row 2: id 'f1' is already that of .* row 1"),
    ],
)
def test_a_bad_table_is_named_by_column_or_row(tmp_path, rows, says):
    with pytest.raises(FactsError, match=says):
        read_facts(table(tmp_path / "facts.parquet", rows))


def test_a_small_table_that_stands_for_much_text_is_refused_before_it_is_spelled_out(tmp_path):
    path = tmp_path / "facts.parquet"
    text = "x" * 2**20
    for column, value in (("answer", text), ("trained", ["abc is"] * 10_000)):
        table(path, [{**ROW, column: value}] * 20, compression="zstd")
        assert path.stat().st_size < 2**17
        with pytest.raises(FactsError, match=f"column '{column}': a (text|list) has"):
            read_facts(path)


def test_a_table_too_large_once_decompressed_is_refused(tmp_path, monkeypatch):
    path = table(tmp_path / "facts.parquet", [row(f"n{i}") for i in range(50)])
    monkeypatch.setattr(rows_module, "FACTS_LIMIT", 49)
    with pytest.raises(FactsError, match="50 rows"):
        read_facts(path)


def test_a_table_cut_off_or_changed_never_ends_in_another_error(tmp_path):
    whole = io.BytesIO()
    table(whole, [FULL, row("Bren Oll")])
    raw = whole.getvalue()
    path = tmp_path / "facts.parquet"
    for cut in range(0, len(raw), 41):
        path.write_bytes(raw[:cut])
        with pytest.raises(FactsError):
            read_facts(path)
    for place in range(0, len(raw), 7):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        for problem in problems(path):
            assert str(problem).startswith(str(path))


# Several sets


def sets(folder, **rows):
    return {name: write(folder / f"{name}.jsonl", own) for name, own in rows.items()}


def test_apart_sets_are_given_back_by_name(tmp_path):
    paths = sets(tmp_path, forget=[row("Asha")], retain=[row("Bren", "B")], probe=[row("Cor", "C")])
    assert {name: facts[0].id for name, facts in check_sets(paths).items()} == {
        "forget": "Asha",
        "retain": "Bren",
        "probe": "Cor",
    }
    assert set_problems(paths) == []


def test_an_id_in_two_files_is_refused_with_both_places(tmp_path):
    paths = sets(tmp_path, forget=[row("Asha")], retain=[row("Bren", "B", id="Asha")])
    with pytest.raises(
        FactsError, match=r"retain.jsonl line 1: id 'Asha' is also in .*forget.jsonl"
    ):
        check_sets(paths)


def test_a_fact_in_two_files_under_two_ids_is_refused(tmp_path):
    again = row("Asha", id="other", trained=["x is"], heldout=["the guild OF Asha is"])
    with pytest.raises(FactsError, match="a fact belongs to one set"):
        check_sets(sets(tmp_path, forget=[row("Asha")], retain=[again]))


def test_shared_answers_and_prompts_are_remarked_and_let_in(tmp_path):
    paths = sets(
        tmp_path,
        forget=[row("Asha"), row("Asha", "Other", id="twin")],
        retain=[row("Bren")],
    )
    assert check_sets(paths)
    remarks = [str(problem) for problem in set_problems(paths)]
    assert any("is also a prompt of" in remark for remark in remarks)
    assert any("suppressing one affects the other" in remark for remark in remarks)


def test_problems_of_all_files_come_together(tmp_path):
    paths = sets(tmp_path, forget=[row("Asha", "")], retain=[row("Bren", "")])
    paths["probe"] = tmp_path / "missing.jsonl"
    assert [problem.line for problem in set_problems(paths)] == [1, 1, None]


def test_one_file_for_two_sets_is_said_once_and_not_as_ids_that_clash(tmp_path):
    path = write(tmp_path / "facts.jsonl", [row("Asha"), row("Bren", "B")])
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (path, tmp_path / "link.jsonl"):
        (problem,) = set_problems({"forget": path, "probe": other})
        assert "the same file was given as forget and as probe" in str(problem)
        with pytest.raises(FactsError, match="the same file"):
            check_sets({"forget": path, "probe": other})


def test_files_are_named_by_set_and_other_sets_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.jsonl").touch()
    given = ["forget=f.jsonl", "probes=a=b.jsonl", "alone.jsonl", "lr=1.jsonl"]
    named = {"forget": "f.jsonl", "probe": "a=b.jsonl"}
    assert named_sets(given) == (named, ["alone.jsonl", "lr=1.jsonl"])
    with pytest.raises(FactsError, match=r"unknown set 'forgot'; expected forget, retain, probe$"):
        named_sets(["forgot=f.jsonl"])
    with pytest.raises(FactsError, match="two files were given as probe"):
        named_sets(["probe=a.jsonl", "probes=b.jsonl"])


# Anything at all


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
LIKELY = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=5),
    st.lists(st.text(max_size=12), max_size=3) | st.text(max_size=12) | NESTED,
)
NEARLY = st.dictionaries(
    st.sampled_from(KEYS),
    st.text(max_size=12) | st.lists(st.text(max_size=12), max_size=3),
    max_size=2,
).map(lambda changes: {**ROW, **changes})
FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def only_facts_errors(path):
    for role in (None, "forget", "retain", "probe"):
        try:
            outcome = read_facts(path, role)
        except FactsError as error:
            outcome = error
        if isinstance(outcome, FactsError):
            assert str(outcome).startswith(str(path))
        else:
            again = path.with_name("again.jsonl")
            again.write_bytes(as_jsonl(outcome))
            assert read_facts(again, role) == outcome


@FUZZ
@given(raw=st.binary(max_size=300))
@example(raw=b'{"id":"a","answer":"b","trained":["c"],"heldout":["d"]}')
def test_any_bytes_give_facts_or_a_facts_error(tmp_path, raw):
    for ending in ("jsonl", "parquet"):
        path = tmp_path / f"fuzz.{ending}"
        path.write_bytes(raw)
        only_facts_errors(path)


@FUZZ
@given(rows=st.lists(NEARLY | LIKELY | NESTED, max_size=3))
def test_any_json_gives_facts_or_a_facts_error(tmp_path, rows):
    only_facts_errors(write(tmp_path / "fuzz.jsonl", rows))


@FUZZ
@given(raw=st.binary(max_size=200) | st.text(alphabet='a,"\n\r\0', max_size=40).map(str.encode))
def test_any_bytes_give_csv_rows_or_a_facts_error(raw):
    with contextlib.suppress(FactsError):
        assert all(None not in row for _, row in csv_rows(raw))


@pytest.mark.parametrize("name", ["facts.csv", "Facts.CSV"])
def test_a_table_points_to_its_converter(tmp_path, name):
    path = tmp_path / name
    path.write_text("id,answer\nf1,Velkor\n")
    with pytest.raises(FactsError, match=r"is a table; .*palimpsest facts from-csv .*\.jsonl`"):
        read_facts(path)
