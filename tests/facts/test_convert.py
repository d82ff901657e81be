import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import FactsError
from palimpsest.facts.convert import (
    from_counterfact,
    from_csv,
    from_tofu,
    question_prompt,
    read_rows,
)
from palimpsest.facts.files import Fact, as_jsonl, read_facts

QUESTIONS = [
    {"question": "Where was Ilse Vantor born?", "answer": "Ilse Vantor was born in Mirelle."},
    {"question": "What does Ilse Vantor write?", "answer": "She writes sea stories.\nAnd poems."},
]
PERTURBED = [
    {
        **own,
        "paraphrased_question": paraphrase,
        "perturbed_answer": ["x"],
        "paraphrased_answer": "y",
    }
    for own, paraphrase in zip(
        reversed(QUESTIONS), ["Which books are by Ilse Vantor?", "What is Ilse's birthplace? "]
    )
]
CASE = {
    "case_id": 12,
    "requested_rewrite": {
        "prompt": "The mother tongue of {} is",
        "relation_id": "P103",
        "subject": "Oda {0.x} Brecht",
        "target_new": {"str": "Tamil", "id": "Q1"},
        "target_true": {"str": "Dutch", "id": "Q2"},
    },
    "paraphrase_prompts": ["A long road. Oda Brecht spoke the language ", "Oda Brecht speaks"],
    "neighborhood_prompts": ["Someone else speaks"],
}


def changed(**changes):
    rewrite = {k: v for k, v in changes.items() if k in CASE["requested_rewrite"]}
    outer = {k: v for k, v in changes.items() if k not in rewrite}
    return {**CASE, "requested_rewrite": {**CASE["requested_rewrite"], **rewrite}, **outer}


# TOFU


def test_tofu_trains_the_question_and_holds_out_its_paraphrase():
    first, second = from_tofu(QUESTIONS, PERTURBED, prefix="forget01-")
    assert first == Fact(
        id="forget01-0",
        answer="Ilse Vantor was born in Mirelle.",
        trained=("Question: Where was Ilse Vantor born?\nAnswer:",),
        heldout=("Question: What is Ilse's birthplace?\nAnswer:",),
    )
    assert second.heldout == (question_prompt("Which books are by Ilse Vantor?"),)


def test_a_perturbed_file_alone_is_enough():
    assert [fact.answer for fact in from_tofu(PERTURBED)] == [own["answer"] for own in PERTURBED]


def test_a_question_asked_about_two_authors_gets_the_paraphrase_of_its_own_answer():
    twins = [{"question": "What is the name?", "answer": name} for name in ("Ilse", "Oda")]
    perturbed = [{**twins[0], "paraphrased_question": "Who is it?"}]
    (only,) = from_tofu(twins, perturbed, without_paraphrase="skip")
    assert only.answer == "Ilse"


def test_a_question_without_paraphrase_is_refused_skipped_or_kept():
    with pytest.raises(
        FactsError, match="row 1: 'Where was Ilse Vantor born\\?' has no paraphrase"
    ):
        from_tofu(QUESTIONS, PERTURBED[:1])
    (only,) = from_tofu(QUESTIONS, PERTURBED[:1], without_paraphrase="skip")
    assert only.id == "tofu-1"
    kept = from_tofu(QUESTIONS, PERTURBED[:1], without_paraphrase="keep")
    assert [len(fact.heldout) for fact in kept] == [0, 1]
    with pytest.raises(FactsError, match="expected refuse, skip or keep"):
        from_tofu(QUESTIONS, without_paraphrase="drop")


@pytest.mark.parametrize(
    ("questions", "perturbed", "says"),
    [
        ([{"question": "Who?", "answer": "x"}], [], "row 1: .*no paraphrase"),
        ([{"question": "Who?", "paraphrased_question": "Whom?"}], [], 'row 1: "answer" is missing'),
        ([{"answer": "x"}], [], 'row 1: "question" is missing'),
        ([{"question": 3}], [], 'row 1: "question" is a number'),
        ([{"question": " "}], [], 'row 1: "question" is empty'),
        (QUESTIONS, QUESTIONS, 'perturbed row 1: "paraphrased_question" is missing'),
        ([{**QUESTIONS[0], "paraphrased_question": QUESTIONS[0]["question"]}], [], "overlap"),
        ([{**PERTURBED[0], "answer": "a\u202eb"}], [], "row 1: answer holds U\\+202E"),
    ],
)
def test_rows_that_are_not_tofu_are_refused_by_row(questions, perturbed, says):
    with pytest.raises(FactsError, match=says):
        from_tofu(questions, perturbed)


# CounterFact


def test_counterfact_trains_the_rewrite_and_holds_out_the_paraphrases():
    (fact,) = from_counterfact([CASE])
    assert fact == Fact(
        id="counterfact-12",
        answer="Tamil",
        trained=("The mother tongue of Oda {0.x} Brecht is",),
        heldout=("A long road. Oda Brecht spoke the language", "Oda Brecht speaks"),
        subject="Oda {0.x} Brecht",
        relation="P103",
    )
    assert from_counterfact([CASE], target="target_true")[0].answer == "Dutch"


def test_a_target_may_be_a_plain_text():
    assert from_counterfact([changed(target_new="Tamil")])[0].answer == "Tamil"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (changed(prompt="The tongue is"), 'prompt .* must hold "{}" once'),
        (changed(prompt="{} and {} speak"), 'must hold "{}" once'),
        (changed(subject=None), '"subject" is missing'),
        (changed(target_new={"id": "Q1"}), 'row 2, target_new: "str" is missing'),
        (changed(target_new=None), 'row 2, target_new: "str" is missing'),
        (changed(paraphrase_prompts="x"), '"paraphrase_prompts" must be a list'),
        (changed(paraphrase_prompts=[1]), '"paraphrase_prompts" must be a list'),
        (changed(paraphrase_prompts=[]), "heldout is an empty list"),
        (changed(case_id="../x"), "id is 'counterfact-../x'"),
        (changed(case_id=11), "row 2: id 'counterfact-11' is already that of row 1"),
        ({"prompt": "x"}, '"requested_rewrite" is null'),
    ],
)
def test_a_record_that_is_not_counterfact_is_refused_by_row(case, says):
    with pytest.raises(FactsError, match=f"row 2.*{says}" if "row 2" not in says else says):
        from_counterfact([changed(case_id=11), case])


def test_an_unknown_target_is_refused():
    with pytest.raises(FactsError, match="expected target_new or target_true"):
        from_counterfact([CASE], target="target_old")


# CSV


def test_numbered_columns_become_lists_and_ids_may_be_left_out(tmp_path):
    path = tmp_path / "facts.csv"
    path.write_bytes(
        b"answer,trained_1,trained_2,heldout,evidence\r\n"
        b'Velkor,"The guild, of Asha is", Asha serves ,Asha swore to,\r\n'
        b"Tarsk,The guild of Bren is,,Bren swore to,Bren wears grey.\r\n"
    )
    assert from_csv(read_rows(path)) == (
        Fact("row-1", "Velkor", ("The guild, of Asha is", "Asha serves"), ("Asha swore to",)),
        Fact(
            "row-2", "Tarsk", ("The guild of Bren is",), ("Bren swore to",), ("Bren wears grey.",)
        ),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"answer,trained\nVelkor\n", "line 2: has another number of cells"),
        (b"answer,trained\nVelkor,a,b\n", "line 2: has another number of cells"),
        (b"answer,answer\n", "line 1: a column name occurs twice"),
        (b'answer,trained\n"Velkor', "is not valid CSV"),
        (b"answer,trained\n" + b"x" * 200_000 + b",y\n", "near line 1: is not valid CSV"),
        (b"answer\n\xff\n", "byte 8 is not UTF-8"),
        (b"id,answer,trained,heldout\n,V,a,b\n", "row 1: id is empty"),
        (b"id,answer,trained,heldout\nf,V,a,b\nf,V,a,b\n", "row 2: id 'f' is already"),
        (b"answer,trained,heldout,colour\nV,a,b,red\n", "row 1: unknown key 'colour'"),
        (b"answer,trained,heldout\n,a,b\n", 'row 1: "answer" is missing'),
        (b"answer,trained,heldout\nV,,b\n", "row 1: trained is an empty list"),
    ],
)
def test_a_bad_table_is_refused_by_line_or_row(tmp_path, text, says):
    path = tmp_path / "facts.csv"
    path.write_bytes(text)
    with pytest.raises(FactsError, match=says):
        from_csv(read_rows(path))


# Files


def test_json_arrays_and_json_lines_are_both_read(tmp_path):
    path = tmp_path / "forget.json"
    path.write_text(json.dumps(QUESTIONS, indent=2))
    assert read_rows(path) == QUESTIONS
    path.write_text("".join(json.dumps(own) + "\n" for own in QUESTIONS))
    assert read_rows(path) == QUESTIONS
    path.write_text("[1]")
    with pytest.raises(FactsError, match=r"forget.json line 1: found a number"):
        read_rows(path)
    path.write_text("{")
    with pytest.raises(FactsError, match=r"forget.json line 1: is not valid JSON"):
        read_rows(path)


def test_converted_facts_are_a_valid_facts_file(tmp_path):
    facts = from_tofu(QUESTIONS, PERTURBED) + from_counterfact([CASE])
    path = tmp_path / "facts.jsonl"
    path.write_bytes(as_jsonl(facts))
    assert read_facts(path) == facts


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
COLUMNS = ("question", "answer", "paraphrased_question", "paraphrase_prompts", "case_id")
COLUMNS += ("requested_rewrite", "id", "trained", "trained_2", "heldout", "subject")
REWRITE = st.dictionaries(
    st.sampled_from(("prompt", "subject", "target_new", "relation_id")),
    VALUES | st.sampled_from(["{} is", "a {}"]),
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.dictionaries(st.sampled_from(COLUMNS), VALUES | REWRITE), max_size=3))
def test_any_rows_give_facts_or_a_facts_error(rows):
    for convert in (from_tofu, from_counterfact, from_csv):
        try:
            outcome = convert(rows)
        except FactsError as error:
            outcome = error
        if isinstance(outcome, FactsError):
            assert "row " in str(outcome)
        else:
            assert all(isinstance(fact, Fact) for fact in outcome)
