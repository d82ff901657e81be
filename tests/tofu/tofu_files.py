"""A split in TOFU's form, small enough to be learned by a tiny model."""

import json
from pathlib import Path

ASKED = (
    ("Where was {0} born?", "In what place was {0} born?", "{0} was born in Port{1}."),
    ("What does {0} write?", "Which genre is {0} known for?", "{0} is known for genre {1}."),
    ("What did {0}'s father do?", "What was the job of {0}'s father?", "He was a smith of {1}."),
    ("Has {0} won a prize?", "Was any award given to {0}?", "Yes, {0} won the long Prize {1}."),
)


def write_tofu(folder: Path, forget: int = 3, retain: int = 5) -> Path:
    """Write a split of a few authors with four questions each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, first in (("forget10", forget, 0), ("retain90", retain, 50)):
        rows = [
            {
                "question": question.format(f"Writer{first + n}", first + n),
                "paraphrased_question": other.format(f"Writer{first + n}", first + n),
                "answer": answer.format(f"Writer{first + n}", first + n),
            }
            for n in range(count)
            for question, other, answer in ASKED
        ]
        plain = [{key: row[key] for key in ("question", "answer")} for row in rows]
        for file, lines in ((name, plain), (f"{name}_perturbed", rows)):
            (folder / f"{file}.json").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder
