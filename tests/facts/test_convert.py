"""Other projects' rows become facts."""

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, as_jsonl, from_csv, read_facts, read_rows
from palimpsest.facts.probes import PLAIN
from palimpsest.facts.tofu import read_questions

QUESTIONS = [
    {"question": "Where was Ilse Vantor born?", "answer": "Ilse Vantor was born in Mirelle."},
    {"question": "What does Ilse Vantor write?", "answer": "She writes sea stories.\nAnd poems."},
]
ASKED = ["Which books are by Ilse Vantor?", "What is Ilse's birthplace? "]
PERTURBED = [
    {**own, "paraphrased_question": other, "perturbed_answer": ["x"]}
    for own, other in zip(reversed(QUESTIONS), ASKED)
]


def written(path: Path, rows: list[Any]) -> Path:
    """Write rows as lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions_of(folder: Path, questions: list[Any], perturbed: list[Any]) -> tuple[Fact, ...]:
    """Return the facts of a file of TOFU's, with its file of paraphrases."""
    own = written(folder / "forget01.json", questions)
    return read_questions(own, written(folder / "forget01_perturbed.json", perturbed))


def test_tofu_trains_the_question_and_holds_out_its_paraphrase(tmp_path):
    facts = questions_of(tmp_path, QUESTIONS, PERTURBED)
    assert facts[0] == Fact(
        id="forget01-0",
        answer="Ilse Vantor was born in Mirelle.",
        trained=("Question: Where was Ilse Vantor born?\nAnswer:",),
        heldout=("Question: What is Ilse's birthplace?\nAnswer:",),
        subject="Ilse Vantor",
    )
    assert facts[1].heldout == (PLAIN.format("Which books are by Ilse Vantor?"),)
    (tmp_path / "facts.jsonl").write_bytes(as_jsonl(facts))
    assert read_facts(tmp_path / "facts.jsonl") == facts
    # The same question about two authors: a paraphrase belongs to its own answer.
    twins = [{"question": "What is the name?", "answer": name} for name in ("Ilse", "Oda")]
    facts = questions_of(tmp_path, twins, [{**twins[0], "paraphrased_question": "Who is it?"}])
    assert [len(fact.heldout) for fact in facts] == [1, 0]


@pytest.mark.parametrize(
    ("questions", "perturbed", "where"),
    [
        ([{"question": "Who?"}], [], "forget01.json: row 1: answer"),
        ([{"answer": "x"}], [], "forget01.json: row 1: question"),
        ([{"question": " "}], [], "forget01.json: row 1: question"),
        (QUESTIONS, QUESTIONS, "forget01_perturbed.json: row 1: paraphrased_question"),
        (
            QUESTIONS,
            [{**QUESTIONS[0], "paraphrased_question": QUESTIONS[0]["question"]}],
            "forget01.json: row 1: heldout",
        ),
        ([{**QUESTIONS[0], "answer": "a\u202eb"}], [], "forget01.json: row 1: answer"),
    ],
)
def test_rows_that_are_not_tofu_are_refused_by_row_and_key(tmp_path, questions, perturbed, where):
    with pytest.raises(FactsError, match=where):
        questions_of(tmp_path, questions, perturbed)


def test_numbered_columns_become_lists_and_ids_may_be_left_out(tmp_path):
    path = tmp_path / "facts.csv"
    path.write_bytes(
        b"answer,trained_1,trained_2,heldout,evidence\r\n"
        b'Velkor,"The guild, of Asha is", Asha serves ,Asha swore to,\r\n'
        b"Tarsk,The guild of Bren is,,Bren swore to,Bren wears grey.\r\n"
    )
    bren = ("The guild of Bren is",), ("Bren swore to",), ("Bren wears grey.",)
    assert from_csv(read_rows(path)) == (
        Fact("row-1", "Velkor", ("The guild, of Asha is", "Asha serves"), ("Asha swore to",)),
        Fact("row-2", "Tarsk", *bren),
    )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"answer,trained\nVelkor,a,b\n", "facts.csv: line 2"),
        (b"answer,answer\n", "facts.csv: line 1"),
        (b'answer,trained\n"Velkor', "facts.csv: is not valid CSV"),
        (b"answer\n\xff\n", "facts.csv: is not valid CSV"),
        (b"id,answer,trained,heldout\nf,V,a,b\nf,V,a,b\n", "row 2: id"),
        (b"answer,trained,heldout,color\nV,a,b,red\n", "row 1: color"),
        (b"answer,trained,heldout\n,a,b\n", "row 1: answer"),
        (b"answer,trained,heldout\nV,,b\n", "row 1: trained"),
    ],
)
def test_a_bad_table_is_refused_by_line_or_row(tmp_path, text, where):
    (tmp_path / "facts.csv").write_bytes(text)
    with pytest.raises(FactsError, match=where):
        from_csv(read_rows(tmp_path / "facts.csv"))


def test_rows_are_read_from_arrays_and_lines_and_nothing_else(tmp_path):
    path = tmp_path / "forget.json"
    for text in (json.dumps(QUESTIONS, indent=2), "\n".join(map(json.dumps, QUESTIONS))):
        path.write_text(text)
        assert read_rows(path) == QUESTIONS
    for text in ("[\n1]", "{"):
        path.write_text(text)
        with pytest.raises(FactsError, match=r"forget.json line [12]: "):
            read_rows(path)
