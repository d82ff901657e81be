"""Write docs/plan.md from the code and examples/plans: ``python docs/plan_table.py``."""

from itertools import groupby
from pathlib import Path

from palimpsest.config.load import config_keys
from palimpsest.config.plan import Plan
from palimpsest.config.presets import PRESETS

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "": "The study",
    "facts": "Facts of a cell",
    "injection": "Training of the injected model and, without the forget set, of the references",
    "unlearning": "Budget shared by every gradient method",
    "reacquisition": "Re-acquisition of the forget set, the same batches for every model of a cell",
    "general": "General text: mixed into injection, and scored for damage",
    "known_label": "Known-label models, scored once on the sealed pool",
    "replication": "Independent retrainings that candidates are compared with",
    "rules": "Thresholds and rules of the verdict",
    "engine": "How numbers are computed",
    "paper": "Thresholds of the paper's edition, which never certifies",
}
OPENING = f"""# The plan of a study

<!-- Written by docs/plan_table.py from the code; do not edit. -->

A plan is a YAML file: `palimpsest study PLAN.yaml`. Its key `preset` names a preset
({", ".join(f"`{name}`" for name in PRESETS)}), and the other keys replace values of it; without a preset every key has
the default below (the paper's steps, rates and items). Flags override the file. The whole plan is checked before
anything is trained; an error names the key. Relative paths start at the file's own folder.

```
palimpsest study demo --show             # a preset, or a file with its preset filled in, as YAML
palimpsest study --schema                # the JSON schema, for completion and checks in an editor
palimpsest study PLAN --dry-run          # cells, memory and time it would take
palimpsest study PLAN --alpha 0.01       # rules as flags
```

**Facts of your own.** `facts: {{{{files: {{{{forget: F.jsonl, retain: R.jsonl, probes: P.jsonl}}}}}}}}` takes files (format:
[Audit your own models](audit-your-model.md)) instead of invented facts. All `trained` prompts are trained on, except the
first of each retain fact, which is only asked. All seeds have the same facts and differ in general text and order.
Known-label models are off, because the sealed phrasings are of invented facts.

**Methods.** An entry of `methods` has the name of a method (`palimpsest methods` lists them) or `package.module:Class`,
and knobs with a value or a list of values ([methods](methods.md)). Run a finished plan again with one more method, or
with an edited plug-in, and only what is new is trained. `--keep candidates` keeps the candidates' weights under
`cells/<cell>/models/`.

""".replace("{{", "{").replace("}}", "}")


def document() -> str:
    """Return the whole of docs/plan.md."""
    parts = [OPENING, "## Keys\n"]
    keys = sorted(config_keys(), key=lambda key: list(SECTIONS).index(_section(key.name)))
    for section, several in groupby(keys, key=lambda key: _section(key.name)):
        title = f"`{section}`: {SECTIONS[section][0].lower()}{SECTIONS[section][1:]}"
        parts.append(f"\n### {title if section else SECTIONS['']}\n\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|\n")
        for key in several:
            cells = (f"`{key.name}`", key.type, key.default, key.meaning)
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    parts.append("\n## A complete example\n")
    text = (ROOT / "examples" / "plans" / "try-a-method.yaml").read_text(encoding="utf-8")
    parts.append(f"\n`palimpsest study plans/try-a-method.yaml` (from `examples/`):\n\n```yaml\n{text}```\n")
    return "".join(parts)


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else ""


if __name__ == "__main__":
    assert set(SECTIONS) - {""} <= set(Plan.__dataclass_fields__)
    (ROOT / "docs" / "plan.md").write_text(document(), encoding="utf-8")
