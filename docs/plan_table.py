"""Write docs/plan.md anew from the code and examples/plans: ``python docs/plan_table.py``."""

from itertools import groupby
from pathlib import Path

from palimpsest.config.plan import Plan
from palimpsest.config.keys import plan_keys
from palimpsest.config.presets import PRESETS

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "": "The study",
    "facts": "Facts of a cell",
    "injection": "Continued pretraining of the injected model and, without the forget set, the references",
    "unlearning": "Budget shared by every gradient method",
    "round_trip": "Re-acquisition of the forget set, the same batches for every model of a cell",
    "general": "General text: mixed into injection, and scored for damage",
    "panel": "Known-label models, scored once on the sealed pool",
    "replication": "Independent retrainings that candidates are compared with",
    "rules": "Thresholds and rules of the verdict",
    "engine": "How numbers are computed",
}
OPENING = f"""# The plan of a study

<!-- Written by docs/plan_table.py from the code; do not edit. -->

A plan is a YAML file: `palimpsest study PLAN.yaml`. Its key `preset` names a preset; the other keys replace values of it
({", ".join(f"`{name}`" for name in PRESETS)}); without a preset every key has the default below (the paper's steps,
rates and items). Flags override the file. The whole plan is checked before anything is trained; an error names the key that
is unknown or has a bad value. Paths are relative to the working directory (those in the file of
an audit, `docs/audit-your-model.md`, are relative to that file).

```
palimpsest plan --show demo       # a preset, or a file with its preset filled in, as YAML
palimpsest plan --schema          # the JSON schema, for completion and checks in an editor
palimpsest study PLAN --dry-run   # cells, memory and time it would take
palimpsest study PLAN --alpha 0.01 --detection-limit 0.1     # rules as flags
```

For an editor with a YAML language server, run `palimpsest plan --schema > plan.schema.json` and begin the plan with the line
`# yaml-language-server: $schema=plan.schema.json`.

## Facts of your own

`facts: {{forget: F.jsonl, retain: R.jsonl, probes: P.jsonl}}` takes files (format: `docs/audit-your-model.md`; check
them with `palimpsest facts check`) instead of numbers of invented facts. The cell is otherwise the same: the injected
model is trained on forget and retain facts, references without the forget facts, and candidates are judged on the held-out prompts. Differences: all `trained`
prompts are trained on, except the first of each retain fact, which is only asked (so each retain fact needs two); all seeds have
the same facts and differ in general text and order; the panel of known-label models is off, because its sealed phrasings are of
invented facts; answers are not stored in the run. The files' digests are part of the run's terms.

## Methods, and adding some later

An entry of `methods` has the name of a method (`palimpsest methods` lists them) or `package.module:Class`, and knobs with a
value or a list of values (`docs/methods.md`). `--method NAME` adds one at its defaults to a new run.

`palimpsest study PLAN --out RUN --add-method NAME` adds one to a finished run. It makes a new run `RUN-with-NAME`, which copies
every stored row of the old run (which is not changed), names it under `fork_of`, and trains the new candidates. If the old run
was made with `engine.keep_models` (or `--keep models`), nothing else is trained; otherwise the injected model, one reference and
the models that vectors are made of are trained again, and must come out with the recorded weights. `--keep candidates`
keeps the candidates' weights, under `cells/<cell>/models/`.

"""


def document() -> str:
    """Return the whole of docs/plan.md."""
    parts = [OPENING, "## Keys\n"]
    keys = sorted(plan_keys(), key=lambda key: list(SECTIONS).index(_section(key.name)))
    for section, several in groupby(keys, key=lambda key: _section(key.name)):
        title = f"`{section}`: {SECTIONS[section][0].lower()}{SECTIONS[section][1:]}"
        parts.append(f"\n### {title if section else SECTIONS['']}\n\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|\n")
        for key in several:
            cells = (f"`{key.name}`", key.type, key.default, key.meaning)
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    parts.append(
        "\n## Three complete examples\n\nThey are in `examples/plans/`; run them from `examples/`.\n"
    )
    for name in ("try-a-method", "own-facts", "matrix"):
        text = (ROOT / "examples" / "plans" / f"{name}.yaml").read_text(encoding="utf-8")
        parts.append(f"\n`palimpsest study plans/{name}.yaml`:\n\n```yaml\n{text}```\n")
    return "".join(parts)


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else ""


if __name__ == "__main__":
    assert set(SECTIONS) - {""} <= set(Plan.__dataclass_fields__)
    (ROOT / "docs" / "plan.md").write_text(document(), encoding="utf-8")
