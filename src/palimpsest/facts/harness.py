"""Facts as tasks of lm-evaluation-harness (Gao et al., EleutherAI).

A task is a YAML file and its questions as JSON lines. Its metric is the harness's ``perplexity``
of output type ``loglikelihood``, whose logarithm is the mean over questions of the answer's NLL in
nats, the number that Palimpsest stores as ``nll_sum``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.facts.files import Fact
from palimpsest.facts.questions import file_questions

POOLS = {"trained": "trained", "evaluation": "heldout"}


def harness_files(
    sets: Mapping[str, Sequence[Fact]], folder: Path, prefix: str = "palimpsest"
) -> dict[str, bytes]:
    """Return the contents of the task files, by name: one task per set and kind of prompt.

    folder: where they will lie; the harness needs the path of the questions.
    """
    import yaml

    questions: dict[str, list[dict[str, Any]]] = {}
    for question in file_questions(sets):
        task = f"{prefix}_{question.set}_{POOLS[question.pool]}"
        continuation = question.text[len(question.prompt) :]
        row = {"fact": question.fact, "prompt": question.prompt, "continuation": continuation}
        questions.setdefault(task, []).append(row)
    files: dict[str, bytes] = {}
    for task, rows in questions.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        files[f"{task}.jsonl"] = "".join(lines).encode()
        values = {
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder.resolve() / f"{task}.jsonl")}},
            "test_split": "test",
            "output_type": "loglikelihood",
            "doc_to_text": "prompt",
            "doc_to_target": "continuation",
            "target_delimiter": "",
            "metric_list": [
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
            ],
            "metadata": {"version": 1.0},
        }
        files[f"{task}.yaml"] = yaml.safe_dump(values, sort_keys=False).encode()
    group = {"group": prefix, "task": list(questions)}
    files[f"{prefix}.yaml"] = yaml.safe_dump(group, sort_keys=False).encode()
    return files
