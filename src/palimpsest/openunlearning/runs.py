"""A run folder of OpenUnlearning as an audit: models, prompts and facts from its configuration.

``saves/unlearn/X`` holds ``.hydra/config.yaml`` (with the overrides applied), the last weights and
``checkpoint-N`` folders; retrainings are in ``saves/finetune``. What is made here, the facts, is
written beside the audit's run folder, to ``OUT.given/``, and nothing into ``saves``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.config.commands import AuditConfig, RunSource
from palimpsest.config.load import load_config
from palimpsest.errors import PlanError
from palimpsest.facts.files import Fact, as_jsonl, read_rows
from palimpsest.facts.probes import tofu_probes, with_relations
from palimpsest.facts.tofu import ENDINGS, SPLITS, Tofu, as_probe, read_tofu, row_of
from palimpsest.openunlearning.hydra import BASE, CONFIG, MODEL, RunConfig, read_run_config
from palimpsest.run.files import make_folder, write_bytes
from palimpsest.stats.rules import MINIMUM_REFERENCES
from palimpsest.text import shown_path

RETAIN_LIMIT = 400
"""Questions to keep that are asked; evenly spread over the authors."""
GENERAL = ("world_facts_perturbed", "real_authors_perturbed")
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,9})")


def audit_run(source: RunSource, values: Mapping[str, Any]) -> tuple[AuditConfig, list[str]]:
    """Return the audit of a run folder, and what was found; ``values`` win over the run's."""
    folder = Path(source.open_unlearning)
    config = read_run_config(folder)
    split = config.get("forget_split")
    if config.get("mode") != "unlearn" or str(split) not in SPLITS:
        raise PlanError(
            f"{shown_path(folder)}: mode {config.get('mode')}, forget_split {split} found; "
            f"expected an unlearning run on TOFU ({', '.join(SPLITS)}); for another, give models "
            "and files of facts to `palimpsest audit`",
            key="open_unlearning",
        )
    check_data(source.data, split)
    given = {key: value for key, value in values.items() if value not in (None, {}, [])}
    out = Path(given.get("out") or Path("runs") / folder.name)
    facts = Path(f"{out}.given")
    base = config.source_of(config.needed(BASE))
    injected = config.source_of(config.needed(MODEL))
    found: dict[str, Any] = {"base": base, "injected": injected, "out": str(out)}
    found["prompt"] = {"prompt_file": str(folder / CONFIG)}
    remarks = [f"Method {config.get('trainer.handler')}, {split}, base {base}."]
    if "candidates" not in given and "candidates_folder" not in given:
        found["candidates"] = _candidates(config, remarks)
    if "references" not in given and "references_folder" not in given:
        found["references"] = _references(config, base, injected, remarks)
    tofu = read_tofu(source.data, split, "{}")
    sets = {"forget": with_relations(tofu.forget)}
    sets["probes"] = _probes(tofu, source, remarks)
    taken = {fact.id for fact in sets["probes"]}
    retain = [replace(fact, heldout=()) for fact in tofu.retain if fact.id not in taken]
    sets["retain"] = tuple(retain[:: -(-len(retain) // RETAIN_LIMIT)])
    make_folder(facts)
    for name in sets.keys() - given.keys():
        found[name] = str(facts / f"{name}.jsonl")
        write_bytes(facts / f"{name}.jsonl", as_jsonl(sets[name]))
    if "general" not in given:
        found["general"] = _general(Path(source.data), facts, remarks)
    prompt = found["prompt"] | given.pop("prompt", {})
    return load_config(AuditConfig, found | given | {"prompt": prompt}), remarks


def check_data(folder: str, split: str) -> None:
    """Raise PlanError, with all that is needed, unless a folder has TOFU's files of a split."""
    needed = (split, f"{split}_perturbed", SPLITS[split])
    lacking = [n for n in needed if not any((Path(folder) / f"{n}.{e}").is_file() for e in ENDINGS)]
    if not folder or lacking:
        found = f"{shown_path(folder)} lacks {', '.join(lacking)}" if folder else "missing"
        more = (split.replace("forget", "holdout"), "retain_perturbed", *GENERAL)
        raise PlanError(
            f"{found}; expected a folder of locuslab/TOFU with {', '.join(needed)} (.json), and "
            f"better with {', '.join(more)}; get them with: huggingface-cli download locuslab/TOFU "
            "--repo-type dataset --local-dir TOFU",
            key="data",
        )


def _has_weights(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def _candidates(config: RunConfig, remarks: list[str]) -> dict[str, str]:
    """Return the last weights and every checkpoint with weights, named by the method."""
    folder, method = config.folder, config.needed("trainer.handler")
    numbered = {
        int(match[1]): child
        for child in folder.iterdir()
        if (match := _CHECKPOINT.fullmatch(child.name))
    }
    paths = {f"{method}-{step}": numbered[step] for step in sorted(numbered)} | {method: folder}
    found = {name: str(path) for name, path in paths.items() if _has_weights(path)}
    if not found:
        raise PlanError(
            f"{shown_path(folder)}: neither it nor its {len(numbered)} checkpoints have "
            "*.safetensors; expected weights; save them, or judge the logs with `palimpsest logs`",
            key="open_unlearning",
        )
    if lacking := [name for name in paths if name not in found]:
        remarks.append(f"No weights, not audited: {', '.join(lacking)}.")
    return found


def _references(config: RunConfig, base: str, injected: str, remarks: list[str]) -> list[str]:
    """Return the retrainings beside the run: the same base, the retain split, one recipe."""
    split = config.needed("forget_split")
    saves = next((p for p in config.folder.resolve().parents if p.name == "saves"), None)
    runs = sorted((saves / "finetune").glob(f"*/{CONFIG}")) if saves is not None else []
    configs = [read_run_config(path.parents[1]) for path in runs]
    paths, notes = list[str](), dict[str, list[str]]()
    model = Path(injected)
    recipe = read_run_config(model) if (model / CONFIG).is_file() else None
    for found in configs:
        same_base = found.source_of(found.text(MODEL)) == base
        if found.trained_on != [SPLITS[split]] or not same_base or not _has_weights(found.folder):
            continue
        recipe = recipe or found
        differences = [*_differences(recipe, found), *_batches(recipe, found, notes)]
        if differences:
            raise PlanError(
                f"{shown_path(found.folder)} was trained by another recipe than "
                f"{shown_path(recipe.folder)}: {'; '.join(differences)}; expected one recipe with "
                "other seeds; name the references to use with --reference",
                key="references",
            )
        paths.append(str(found.folder))
    remarks += [f"{', '.join(names)}: {text}." for text, names in notes.items()]
    if len(paths) < MINIMUM_REFERENCES:
        remarks.append(
            f"{len(paths)} references found in saves/finetune; a verdict with fewer than "
            f"{MINIMUM_REFERENCES} is partial. Train them on {SPLITS[split]} with other seeds: "
            "`palimpsest retrain --open-unlearning` on the full model's run writes a script for it."
        )
    return paths


def _differences(recipe: RunConfig, other: RunConfig) -> Iterator[str]:
    theirs = other.settings()
    for key, value in recipe.settings().items():
        if theirs[key] != value:
            yield f"{key.rpartition('.')[2]} is {theirs[key]!r}, not {value!r}"


def _batches(recipe: RunConfig, other: RunConfig, notes: dict[str, list[str]]) -> Iterator[str]:
    """Yield how the questions of a step differ; note, by runs, what is equal on other devices."""
    (mine, devices), (theirs, others) = recipe.batch, other.batch
    told = f"{theirs} questions a step on each of {others or 'unknown'} devices"
    if devices and others:
        if mine * devices != theirs * others:
            yield f"{told}, not {mine} on each of {devices}"
        elif devices != others:
            note = f"{told}, as many as {mine} on each of {devices}"
            notes.setdefault(note, []).append(other.folder.name)
    elif mine != theirs:
        yield f"{told}, not {mine} on {devices or 'unknown'} (trainer_state.json would tell)"
    elif recipe.folder != other.folder:
        notes.setdefault("as many devices are assumed", []).append(other.folder.name)


def _probes(tofu: Tofu, source: RunSource, remarks: list[str]) -> tuple[Fact, ...]:
    """Return the never-taught questions, as many as forget questions at most."""
    count = len(tofu.forget)
    if source.probes_from_retain:
        first, _, last = source.probes_from_retain.partition(":")
        if not (first.isdigit() and last.isdigit()):
            raise PlanError(
                f"{source.probes_from_retain!r} found; expected FIRST:LAST, two numbers of rows",
                key="probes_from_retain",
            )
        rows = range(int(first), int(last) + 1)
        probes = tuple(as_probe(fact) for fact in tofu.retain if row_of(fact) in rows)[:count]
        remarks.append(f"Probes: {len(probes)} retain questions said to be left out of training.")
    elif tofu.holdout:
        probes = tofu.holdout[:count]
        remarks.append(f"Probes: {len(probes)} of TOFU's holdout questions.")
    else:
        probes = tofu_probes(tofu.forget, count, "open-unlearning/probes", tofu.words(), "{}")
        remarks.append(
            f"Probes: {len(probes)} generated questions, whose style differs from TOFU's: a "
            "retrained model may do better on forget questions than on them. Put holdoutNN.json "
            "into the data folder, or name untaught rows with --probes-from-retain."
        )
    return probes


def _general(data: Path, folder: Path, remarks: list[str]) -> str:
    """Return a file of general text made of TOFU's questions about the real world, if it can."""
    paths = [data / f"{name}.json" for name in GENERAL]
    rows = [row for path in paths if path.is_file() for row in read_rows(path)]
    lines = [f"{row.get('question')} {row.get('answer')}." for row in rows]
    if not lines:
        remarks.append("General text: generated prose; give your own with --general.")
        return "pocket"
    remarks.append("General text: TOFU's questions about real authors and the world.")
    write_bytes(folder / "general.txt", "\n".join(lines).encode())
    return str(folder / "general.txt")
