"""Write docs/plan.md from the code: ``python docs/plan_table.py``."""

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
    "unlearning": "Budget of every gradient method",
    "reacquisition": "Training on the forget set again, with the same batches for every model",
    "general": "General text, which is mixed into injection and scored for damage",
    "known_label": "Known-label models, scored once on the sealed pool",
    "replication": "Independent retrainings that candidates are compared with",
    "rules": "Thresholds and rules of the verdict",
    "engine": "How numbers are computed",
}
OPENING = f"""# The plan of a study

<!-- Written by docs/plan_table.py from the code; do not edit. -->

`palimpsest study PLAN.yaml` runs the plan in a YAML file. Its key `preset` names a preset
({", ".join(f"`{name}`" for name in PRESETS)}),
and the other keys override the preset's values. Without a preset, every key has the default below (the paper's steps,
rates and items). Flags override the file. The whole plan is checked before anything is trained, and an error names the
key. Relative paths are relative to the file's folder.

```
palimpsest study demo --show             # print a complete plan (of a preset or a file) as YAML
palimpsest study --schema                # print the JSON schema with types and bounds, for an editor
palimpsest study PLAN --dry-run          # print the cells, memory and time it would take
palimpsest study PLAN --alpha 0.01       # set a rule by a flag
```

**Facts of your own.** `facts: {{{{files: {{{{forget: F.jsonl, retain: R.jsonl, probes: P.jsonl}}}}}}}}` reads facts from
files ([format](audit-your-model.md#the-files)). Models are trained on all `trained` prompts, except the first one of each
retain fact, which is used only for scoring. All seeds have the same facts and differ in general text and order. Set
`known_label: []`: the sealed phrasings exist only for invented facts.

**Methods.** An entry of `methods` has the `name` of a method (`palimpsest methods` lists them) or `package.module:Class`,
and knobs with a value or a list of values ([methods](methods.md)). If you run a finished plan again with one more method,
or after editing a plug-in, only what is new is trained. `--keep candidates` keeps the candidates' weights under
`cells/<cell>/models/`. `examples/plans/` has complete plans.

""".replace("{{", "{").replace("}}", "}")


def document() -> str:
    """Return the whole of docs/plan.md."""
    parts = [OPENING, "## Keys\n"]
    keys = sorted(config_keys(), key=lambda key: list(SECTIONS).index(_section(key.name)))
    for section, several in groupby(keys, key=lambda key: _section(key.name)):
        title = f"`{section}`: {SECTIONS[section][0].lower()}{SECTIONS[section][1:]}"
        parts.append(f"\n### {title if section else SECTIONS['']}\n\n")
        parts.append("| key | default | meaning |\n|---|---|---|\n")
        for key in several:
            cells = (f"`{key.name}`", key.default, key.meaning)
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else ""


if __name__ == "__main__":
    assert set(SECTIONS) - {""} <= set(Plan.__dataclass_fields__)
    (ROOT / "docs" / "plan.md").write_text(document(), encoding="utf-8")
