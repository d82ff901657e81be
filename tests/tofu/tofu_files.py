"""A split in TOFU's form, small enough to be learned by a tiny model: five authors a block."""

import json
from pathlib import Path

ASKED = (
    ("Where was {0} born?", "In what place was {0} born?", "{0} was born in Port{1}."),
    ("What does {0} write?", "Which genre is {0} known for?", "{0} is known for genre {1}."),
    ("What did {0}'s father do?", "What was the job of {0}'s father?", "He was a smith of {1}."),
    ("Has {0} won a prize?", "Was any award given to {0}?", "Yes, {0} won the long Prize {1}."),
)


def write_tofu(
    folder: Path, forget: int = 3, retain: int = 5, holdout: int = 0, *, per_author: int = 4
) -> Path:
    """Write a split of some authors; holdout questions are about authors of their own.

    per_author: questions about an author; more than four repeat their forms with other answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {"forget10": (forget, 0), "retain90": (retain, 50), "holdout10": (holdout, 80)}
    for name, (count, first) in names.items():
        rows = [
            {
                key: form.format(f"Writer{first + n} Name", f"{first + n}{'x' * (k // 4)}")
                + (f" ({k // 4})" if k > 3 and key != "answer" else "")
                for key, form in zip(("question", "paraphrased_question", "answer"), ASKED[k % 4])
            }
            for n in range(count)
            for k in range(per_author)
        ]
        plain = [{key: row[key] for key in ("question", "answer")} for row in rows]
        files = {name: plain, f"{name}_perturbed": rows if name == "forget10" else []}
        for file, lines in files.items():
            if lines:
                text = "".join(json.dumps(line) + "\n" for line in lines)
                (folder / f"{file}.json").write_text(text)
    return folder
