"""Write docs/plan.md from the code: ``python docs/plan_table.py``."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from palimpsest.config.commands import AuditConfig
from palimpsest.config.load import Key, config_keys
from palimpsest.config.plan import Plan
from palimpsest.config.presets import PRESETS

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "": "The study",
    "facts": "Facts of a cell",
    "prompt": "Text around questions and answers of facts from files",
    "injection": "Training of the injected model and, without the forget set, of the references",
    "unlearning": "Budget of every gradient method",
    "reacquisition": "Training on the forget set again, with the same batches for every model",
    "general": "General text, which is mixed into injection and scored for damage",
    "replication": "Independent retrainings that candidates are compared with",
    "rules": "Thresholds and rules of the verdict",
    "engine": "How numbers are computed",
}
AUDIT_ONLY = ("adapter_base",)
"""Keys of an audit's file that have neither a flag nor a counterpart in a plan."""
OPENING = f"""# Configuration

<!-- Written by docs/plan_table.py from the code; do not edit. -->

Flags override a file, and a file overrides defaults. The whole configuration is checked before anything is trained, and
an error names the key. Relative paths are relative to the file's folder.

## Files of `audit`, `retrain` and `unlearn`

`palimpsest audit audit.yaml` takes the names of its flags as keys (`candidates` and `references` for the repeatable
ones), the sections `engine`, `prompt` and `rules` with the keys below, `items` and `chunks` (see `reacquisition`),
`scored_pieces` and `piece_tokens` (see `general`), and

AUDIT_KEYS
## The plan of a study

`palimpsest study PLAN.yaml` runs the plan in a file. Its key `preset` names a preset
({", ".join(f"`{name}`" for name in PRESETS)}), and the other keys
override the preset's values. Without a preset, every key has the default below (the paper's steps, rates and items).

```
palimpsest study demo --show             # print a complete plan (of a preset or a file) as YAML
palimpsest study --schema                # print the JSON schema with types and bounds, for an editor
palimpsest study PLAN --dry-run          # print the cells, memory and time it would take
palimpsest study PLAN --alpha 0.01       # set a rule by a flag
```

**Facts of your own.** `facts: {{{{files: {{{{forget: F.jsonl, retain: R.jsonl, probes: P.jsonl}}}}}}}}` reads facts from
files ([format](audit-your-model.md#the-files)). Models are trained on all `trained` prompts, except the first one of
each retain fact, which is used only for scoring. Set `known_label: []`: the sealed phrasings exist only for invented
facts.

If you run a finished plan again with one more [method](methods.md), only what is new is trained. `--keep candidates`
keeps the candidates' weights under `cells/<cell>/models/`. `examples/plans/` has complete plans.
""".replace("{{", "{").replace("}}", "}")


def document() -> str:
    """Return the whole of docs/plan.md."""
    audit = [key for key in config_keys(AuditConfig) if key.name in AUDIT_ONLY]
    parts = [OPENING.replace("AUDIT_KEYS\n", _listed(audit) + "\n")]
    keys = sorted(config_keys(), key=lambda key: list(SECTIONS).index(_section(key.name)))
    for section, several in groupby(keys, key=lambda key: _section(key.name)):
        title = f"`{section}`: {SECTIONS[section][0].lower()}{SECTIONS[section][1:]}"
        parts.append(f"\n### {title if section else SECTIONS['']}\n\n{_listed(several)}")
    return "".join(parts)


def _listed(keys: Iterable[Key]) -> str:
    """Return the keys as a list with their defaults."""
    return "".join(f"- `{key.name}` ({key.default}): {key.meaning}\n" for key in keys)


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else ""


if __name__ == "__main__":
    assert set(SECTIONS) - {""} <= set(Plan.__dataclass_fields__)
    (ROOT / "docs" / "plan.md").write_text(document(), encoding="utf-8")
