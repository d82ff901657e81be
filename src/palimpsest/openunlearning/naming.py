"""Who a log is of: what the names of folders, configurations and paths say."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NamedTuple

from palimpsest.openunlearning.hydra import BASE, CHAT, MODEL, TAGS, RunConfig
from palimpsest.openunlearning.models import Role

BASES = (
    *("Llama-2-7b-hf", "Llama-2-7b-chat-hf", "Llama-2-13b-hf", "Llama-3.1-8B-Instruct"),
    *("Llama-3.2-1B-Instruct", "Llama-3.2-3B-Instruct", "Phi-3.5-mini-instruct", "phi-1_5"),
    *("Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct", "gemma-7b-it"),
    "zephyr-7b-beta",
)
"""OpenUnlearning's models, by the names of their configurations."""
TOFU_NAME = re.compile(
    r"(?:^|[_-])tofu_(?P<base>.+?)_(?P<kind>full|ft|pretrained|retain(?=\d)|forget(?=\d))"
    r"(?:_retain)?(?P<size>\d\d)?(?P<rest>(?:_.*)?)$"
)
MUSE_NAME = re.compile(
    r"(?:^|[_-])muse_(?P<base>.+?)_(?P<split>News|Books)_(?P<kind>[^_]+)(?P<rest>.*)$"
)
KINDS = {"full": Role.FULL, "ft": Role.FULL, "target": Role.FULL, "pretrained": Role.PRETRAINED}
KINDS |= {"retain": Role.RETRAINED, "retrain": Role.RETRAINED}
SETTING = re.compile(r"_(temp(?:erature)?[-_]?\d+(?:\.\d+)?)(?=_|$)")
"""Of an evaluation whose scores no other evaluation's can be compared with."""
RECIPE = re.compile(r"_(?:lr|wd|epochs?|ep|bs|steps?)[-_]?\d[\d.e+-]*")
DRAW = re.compile(r"(?:_(?:seed|run|draw|s)?[-_]?\d+)?")


class Identity(NamedTuple):
    """What a name or a configuration says about a model; empty where it says nothing."""

    base: str = ""
    split: str = ""
    role: Role | None = None
    setting: str = ""
    recipe: str = ""  # of a retraining, as its name says it
    template: Mapping[str, str] = {}


def parse_name(name: str) -> Identity:
    """Return what a name says, in OpenUnlearning's form or, of a candidate, in another one."""
    match = MUSE_NAME.search(name) or TOFU_NAME.search(name)
    if match is None:
        return _parse_freely(name)
    parts = match.groupdict()
    rest, split, size = parts["rest"], parts.get("split") or "", parts.get("size")
    setting = found[1] if (found := SETTING.search(rest)) else ""
    rest = SETTING.sub("", rest)
    recipe = "".join(RECIPE.findall(rest))
    role: Role | None = KINDS.get(parts["kind"], Role.CANDIDATE)
    if role is Role.FULL and (found := re.fullmatch(r"_(forget\d\d)", rest)):
        rest, split = "", found[1]
    if role is not Role.CANDIDATE and not DRAW.fullmatch(RECIPE.sub("", rest)):
        role = None  # what follows a reference's name may be a method
    if size:
        split = f"forget{size if parts['kind'] == 'forget' else f'{100 - int(size):02}'}"
    return Identity(parts["base"], split, role, setting, recipe)


def _parse_freely(name: str) -> Identity:
    """Return what a name in no form of OpenUnlearning's says: base, split, and that the model is a
    candidate where it names what was forgotten and no kind of reference."""
    words = [word.lower() for word in re.split(r"[^A-Za-z0-9.]+", name)]
    split = next((word for word in words if re.fullmatch(r"forget\d\d", word)), "")
    reference = any(word.rstrip("0123456789") in KINDS for word in words)
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    bases = [base for base in BASES if re.sub(r"[^a-z0-9]", "", base.lower()) in plain]
    role = Role.CANDIDATE if split and not reference else None
    return Identity(max(bases, key=len, default=""), split, role)


def parse_place(place: str) -> Identity:
    """Return what a path or an id on the hub says about a model."""
    parts = [part.rpartition("--")[2] for part in PurePath(place).parts]
    named = [parse_name(part) for part in reversed(parts)]
    return next((found for found in named if found.role or found.base), Identity())


def read_identity(config: RunConfig) -> Identity:
    """Return what a configuration says about the model and its prompt."""
    model, base, mode = (config.text(key) for key in (MODEL, BASE, "mode"))
    place = parse_place(model)
    if mode == "unlearn":
        role: Role | None = Role.CANDIDATE
    elif mode == "eval":
        untouched = model == base and Path(base).name in BASES
        role = Role.PRETRAINED if untouched else place.role
    else:
        role = KINDS.get(" ".join(config.trained_on).rstrip("0123456789"))
    template = config.section("model.template_args")
    chat = template.get("apply_chat_template") is True
    used = {key: config.text(f"model.template_args.{key}") for key in (CHAT if chat else TAGS)}
    prompt = {"apply_chat_template": str(chat), **used} if template else {}
    split = config.text("forget_split") or config.text("data_split")
    name = parse_place(base).base or place.base or PurePath(base).name
    return Identity(name, split, role, template=prompt)


def locate_run(path: Path) -> tuple[Path, int | None, str]:
    """Return the run folder of a log, its checkpoint, and the split of an ``evals_SPLIT``."""
    folder, checkpoint, hint = path.parent, None, ""
    if match := re.fullmatch(r"evals?(?:_(forget\d\d|News|Books))?", folder.name):
        folder, hint = folder.parent, match[1] or ""
    if match := re.fullmatch(r"checkpoint-(\d{1,9})", folder.name):
        folder, checkpoint = folder.parent, int(match[1])
    return folder, checkpoint, hint
