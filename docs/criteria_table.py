"""Rewrite the results of docs/criteria.md: ``python docs/criteria_table.py RUN``."""

import sys
from pathlib import Path

from palimpsest.criteria.page import FORMS, sentences, trial_tables
from palimpsest.criteria.trial import Trial, run_trial
from palimpsest.report.formats import Table, as_markdown
from palimpsest.report.results import read_run

PAGE = Path(__file__).with_name("criteria.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
SHORT = ("criterion", "inputs", "AUC within, hard", "AUC pooled, hard", "fresh accepted")


def main(run: Path) -> None:
    """Replace what stands between the two marks by what the run shows."""
    results = read_run(run)
    trial = run_trial(results)
    whole, models, _ = trial_tables(trial)
    parts = [*(f"- {sentence}" for sentence in sentences(trial, results.rules)), ""]
    for form, words in FORMS.items():
        parts += [as_markdown(_short(whole, trial, form, words)), ""]
    parts += [as_markdown(models)]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(parts).rstrip() + f"\n{END}{after}")


def _short(table: Table, trial: Trial, form: str, words: str) -> Table:
    rows = tuple(
        row for row, about in zip(table.rows, trial.rows, strict=True) if about.form == form
    )
    kept = Table("criteria", f"Criteria {words}", table.reading, table.columns, rows, table.forms)
    return kept.only([*SHORT, "not restored, accepted"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/criteria_table.py RUN")
    main(Path(sys.argv[1]))
