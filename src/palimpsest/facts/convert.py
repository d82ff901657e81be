"""Facts from the files other projects have: TOFU, CounterFact, a table in CSV.

Each converter takes parsed rows and returns facts, or a FactsError naming the row (from 1).
``read_rows`` parses a file; writing the result is the caller's.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, make_fact, place, same_text
from palimpsest.facts.names import kind, shown, shown_path
from palimpsest.facts.rows import Unreadable, numbered_rows

Row = Mapping[str, object]

_CSV_COLUMN = re.compile(r"(?P<key>trained|heldout|evidence)(?:[_ ]?[0-9]+)?\Z")


def read_rows(path: Path | str) -> list[Row]:
    """Return the rows of a .csv, .parquet, .jsonl or .json file (an array or JSON lines)."""
    rows: list[Row] = []
    for line, row in numbered_rows(path, tables=True):
        if not isinstance(row, dict):
            why = row.why if isinstance(row, Unreadable) else f"found {kind(row)}; expected a row"
            raise FactsError(f"{place(shown_path(path), line)}: {why}")
        rows.append(row)
    return rows


def from_tofu(
    questions: Iterable[Row],
    perturbed: Iterable[Row] = (),
    *,
    prefix: str = "tofu-",
    without_paraphrase: str = "refuse",
) -> tuple[Fact, ...]:
    """Return one fact per TOFU question: the question trained, its paraphrase held out.

    ``questions`` are rows of ``question`` and ``answer`` (forget10, retain90 ...); the paraphrase,
    ``paraphrased_question``, is in the same row or in the row of ``perturbed`` that has the same
    question and answer (forget10_perturbed, retain_perturbed ...).  A question without is refused,
    or with ``without_paraphrase`` left out ("skip") or kept with nothing held out ("keep", which is
    enough for retain).
    Ids are the prefix and the row's index from 0, so give each set its own prefix.
    Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".
    """
    if without_paraphrase not in ("refuse", "skip", "keep"):
        raise FactsError(
            f"without_paraphrase is {shown(without_paraphrase)}; expected refuse, skip or keep"
        )
    # By question and answer, because two of TOFU's authors are asked the same "full name" question.
    paraphrases: dict[tuple[str, str], str] = {}
    for number, row in enumerate(perturbed, start=1):
        where = f"perturbed row {number}"
        asked = same_text(_text(row, "question", where)), same_text(_text(row, "answer", where))
        paraphrases[asked] = _text(row, "paraphrased_question", where)
    facts = []
    for index, row in enumerate(questions):
        where = f"row {index + 1}"
        question, answer = _text(row, "question", where), _text(row, "answer", where)
        if row.get("paraphrased_question") is not None:
            paraphrase = _text(row, "paraphrased_question", where)
        else:
            paraphrase = paraphrases.get((same_text(question), same_text(answer)), "")
        if not paraphrase and without_paraphrase == "skip":
            continue
        if not paraphrase and without_paraphrase == "refuse":
            raise FactsError(
                f"{where}: {shown(question)} has no paraphrase; give the *_perturbed file of this "
                "set, or choose to skip such questions"
            )
        fact = {
            "id": f"{prefix}{index}",
            "answer": answer,
            "trained": [question_prompt(question)],
            "heldout": [question_prompt(paraphrase)] if paraphrase else [],
        }
        facts.append(_fact(fact, where, "retain" if without_paraphrase == "keep" else None))
    return tuple(facts)


def question_prompt(question: str) -> str:
    """Return the prompt that asks a question the way TOFU's models were taught."""
    return f"Question: {question}\nAnswer:"


def from_counterfact(rows: Iterable[Row], *, target: str = "target_new") -> tuple[Fact, ...]:
    """Return one fact per CounterFact record: the rewrite prompt trained, the paraphrases held out.

    The answer is ``target_new`` (the counterfactual one, which an edited model was taught) or
    ``target_true``.  Subject and relation id are kept; ids are ``counterfact-`` and the case's id.
    Meng et al. 2022, "Locating and editing factual associations in GPT".
    """
    if target not in ("target_new", "target_true"):
        raise FactsError(f"target is {shown(target)}; expected target_new or target_true")
    facts = []
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        rewrite = row.get("requested_rewrite")
        if not isinstance(rewrite, dict):
            raise FactsError(f'{where}: "requested_rewrite" is {kind(rewrite)}; expected an object')
        prompt, subject = (_text(rewrite, key, where) for key in ("prompt", "subject"))
        if prompt.count("{}") != 1:
            raise FactsError(
                f'{where}: prompt {shown(prompt)} must hold "{{}}" once, for the subject'
            )
        answer = rewrite.get(target)
        named = answer if isinstance(answer, dict) else {"str": answer}
        paraphrases = row.get("paraphrase_prompts")
        if not isinstance(paraphrases, list) or not all(isinstance(p, str) for p in paraphrases):
            raise FactsError(f'{where}: "paraphrase_prompts" must be a list of strings')
        relation = rewrite.get("relation_id")
        fact = {
            "id": f"counterfact-{row.get('case_id', number)}",
            "answer": _text(named, "str", f"{where}, {target}"),
            "trained": [prompt.replace("{}", subject)],
            "heldout": [_clean(paraphrase) for paraphrase in paraphrases],
            "subject": subject,
            "relation": relation if isinstance(relation, str) else "",
        }
        facts.append(_fact(fact, where))
    _refuse_repeated_ids(facts)
    return tuple(facts)


def from_csv(rows: Iterable[Row], *, prefix: str = "row-") -> tuple[Fact, ...]:
    """Return one fact per row of a table with the columns of a facts file.

    ``trained``, ``heldout`` and ``evidence`` may be numbered to give several (``trained_1``,
    ``trained_2`` ...); empty cells are passed over.  Without a column ``id`` the ids are the prefix
    and the row's number.
    """
    facts = []
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        fact: dict[str, object] = {"id": f"{prefix}{number}"}
        lists: dict[str, list[object]] = {"trained": [], "heldout": [], "evidence": []}
        for column, cell in row.items():
            value = _clean(cell) if isinstance(cell, str) else cell
            several = _CSV_COLUMN.match(str(column).strip())
            if several and value not in ("", None):
                lists[several["key"]].append(value)
            elif not several and (value or column == "id"):
                fact[str(column).strip()] = value
        facts.append(_fact(fact | lists, where))
    _refuse_repeated_ids(facts)
    return tuple(facts)


def _clean(text: str) -> str:
    """Return the text with newlines of one kind and no white space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _text(row: object, key: str, where: str) -> str:
    value = row.get(key) if isinstance(row, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        state = "empty" if isinstance(value, str) else "missing" if value is None else kind(value)
        raise FactsError(f'{where}: "{key}" is {state}; expected a text')
    return _clean(value)


def _fact(row: Row, where: str, role: str | None = None) -> Fact:
    fact, wrong = make_fact(row, role)
    if fact is None:
        raise FactsError(f"{where}: {'; '.join(wrong)}")
    return fact


def _refuse_repeated_ids(facts: list[Fact]) -> None:
    rows: dict[str, int] = {}
    for number, fact in enumerate(facts, start=1):
        first = rows.setdefault(fact.id, number)
        if first != number:
            raise FactsError(f"row {number}: id {shown(fact.id)} is already that of row {first}")
