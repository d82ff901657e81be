"""Facts from files of other projects, TOFU's or a table in CSV, and as lm-evaluation-harness tasks.

Each converter takes parsed rows and returns facts, or a FactsError naming the row (from 1).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, make_fact, place, same_text
from palimpsest.facts.names import shown, shown_path
from palimpsest.facts.questions import Pool, file_questions
from palimpsest.facts.rows import numbered_rows

Row = Mapping[str, object]

_LIST_COLUMN = re.compile(r"(?P<key>trained|heldout|evidence)(?:[_ ]?[0-9]+)?\Z")


def read_rows(path: Path | str) -> list[Row]:
    """Return the rows of a .csv, .parquet, .jsonl or .json file."""
    rows: list[Row] = []
    for line, row in numbered_rows(path, tables=True):
        if not isinstance(row, dict):
            why = row if isinstance(row, FactsError) else "expected an object with keys"
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
    question and answer (forget10_perturbed, retain_perturbed ...). A question without is refused,
    left out ("skip") or kept with nothing held out ("keep", which is enough for retain).
    Ids are the prefix and the row's index from 0, so give each set its own prefix.
    Maini et al. 2024, "TOFU: A task of fictitious unlearning for LLMs".
    """
    if without_paraphrase not in ("refuse", "skip", "keep"):
        found = shown(without_paraphrase)
        raise FactsError(f"without_paraphrase: {found} found; expected refuse, skip or keep")
    # By question and answer, because two of TOFU's authors are asked the same "full name" question.
    paraphrases = {}
    for number, row in enumerate(perturbed, start=1):
        where, keys = f"perturbed row {number}", ("question", "answer", "paraphrased_question")
        question, answer, paraphrase = (_text(row, key, where) for key in keys)
        paraphrases[same_text(question), same_text(answer)] = paraphrase
    facts = []
    for number, row in enumerate(questions, start=1):
        where = f"row {number}"
        question, answer = (_text(row, key, where) for key in ("question", "answer"))
        other = paraphrases.get((same_text(question), same_text(answer)), "")
        if row.get("paraphrased_question") is not None:
            other = _text(row, "paraphrased_question", where)
        if not other and without_paraphrase == "refuse":
            raise FactsError(f"{where}: has no paraphrase; give the *_perturbed file, or skip such")
        if other or without_paraphrase == "keep":
            asked = {"trained": [question_prompt(question)]}
            asked |= {"heldout": [question_prompt(other)]} if other else {}
            values = {"id": f"{prefix}{number - 1}", "answer": answer, **asked}
            facts.append(_fact(values, where, "forget" if other else "retain"))
    return tuple(facts)


def question_prompt(question: str) -> str:
    """Return the prompt that asks a question the way TOFU's models were taught."""
    return f"Question: {question}\nAnswer:"


def from_csv(rows: Iterable[Row], *, prefix: str = "row-") -> tuple[Fact, ...]:
    """Return one fact per row of a table with the columns of a facts file.

    ``trained``, ``heldout`` and ``evidence`` may be numbered to give several (``trained_1``,
    ``trained_2`` ...); empty cells are passed over.  Without a column ``id`` the ids are the prefix
    and the row's number.
    """
    facts: dict[str, Fact] = {}
    for number, row in enumerate(rows, start=1):
        values: dict[str, Any] = {"id": f"{prefix}{number}"}
        for column, cell in row.items():
            value = _clean(cell) if isinstance(cell, str) else cell
            several = _LIST_COLUMN.match(str(column).strip())
            if several and value not in ("", None):
                values.setdefault(several["key"], []).append(value)
            elif not several:
                values[str(column).strip()] = value
        fact = _fact(values, f"row {number}")
        if fact.id in facts:
            raise FactsError(f"row {number}: id: {shown(fact.id)} is that of an earlier row too")
        facts[fact.id] = fact
    return tuple(facts.values())


def harness_files(
    sets: Mapping[str, Sequence[Fact]], folder: Path, prefix: str = "palimpsest"
) -> dict[str, bytes]:
    """Return the contents of the files by name: a YAML and JSON lines per set and kind of prompt.

    The metric of a task is the harness's ``perplexity`` of output type ``loglikelihood``: its
    logarithm is the mean over questions of the answer's NLL in nats, stored here as ``nll_sum``.
    folder: where the files will be; the harness needs the path of the questions.
    """
    import yaml

    tasks: dict[str, list[str]] = {}
    for question in file_questions(sets):
        kind = "trained" if question.pool == Pool.TRAINED else "heldout"
        continuation = question.text[len(question.prompt) :]
        row = {"fact": question.fact, "prompt": question.prompt, "continuation": continuation}
        line = json.dumps(row, ensure_ascii=False) + "\n"
        tasks.setdefault(f"{prefix}_{question.set}_{kind}", []).append(line)
    metric = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    documents: dict[str, dict[str, Any]] = {
        task: {
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder.resolve() / f"{task}.jsonl")}},
            "test_split": "test",
            "output_type": "loglikelihood",
            "doc_to_text": "prompt",
            "doc_to_target": "continuation",
            "target_delimiter": "",
            "metric_list": [metric.copy()],
            "metadata": {"version": 1.0},
        }
        for task in tasks
    }
    documents[prefix] = {"group": prefix, "task": list(tasks)}
    files = {f"{task}.jsonl": "".join(lines).encode() for task, lines in tasks.items()}
    for name, values in documents.items():
        files[f"{name}.yaml"] = yaml.safe_dump(values, sort_keys=False).encode()
    return files


def _clean(text: str) -> str:
    """Return the text with newlines of one kind and no white space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise FactsError(f"{where}: {key}: no text found; expected some")
    return _clean(value)


def _fact(row: Row, where: str, role: str = "facts") -> Fact:
    try:
        return make_fact(row, role)
    except FactsError as error:
        raise FactsError(f"{where}: {error}") from error
