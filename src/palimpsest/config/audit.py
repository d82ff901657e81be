"""An audit of your own models: which models and files, and every setting that can change a number.

The same from flags, a YAML file or Python; nothing here opens a model or a facts file.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from palimpsest.config.plan import check_chunks
from palimpsest.config.sections import Count, Engine, FilePath, ModelPlace, Number, Rate
from palimpsest.errors import PlanError
from palimpsest.facts.names import candidate_name
from palimpsest.stats.rules import Rules, refuse_unmeasured

LADDER = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
"""Learning rates of re-acquisition that are tried on a reference where none is given."""
_TAKEN = re.compile(r"(control|retraining|reference)(-.*)?|base|injected|forget_only|general_only")


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """One audit; paths in a YAML file start at the file's own folder."""

    base: ModelPlace
    """Model before it was trained on the forget data."""
    injected: ModelPlace
    """Model trained on forget and retain data."""
    candidates: tuple[tuple[str, ModelPlace], ...] = ()
    """NAME=PATH of an unlearned model. Repeatable."""
    candidates_folder: FilePath = ""
    """Folder of candidates, one checkpoint per sub-folder."""
    references: tuple[ModelPlace, ...] = ()
    """Model retrained without the forget data. Repeatable."""
    references_folder: FilePath = ""
    """Folder of references, one checkpoint per sub-folder."""
    exclude: tuple[str, ...] = ()
    """Name of a reference to leave out of the comparison; every verdict says so. Repeatable."""
    forget: FilePath
    """File of facts to forget."""
    retain: FilePath
    """File of facts to keep."""
    probes: FilePath = ""
    """File of facts that no model was trained on."""
    generate_probes: Number = 0
    """Generate N probes from the forget facts."""
    general: FilePath
    """Plain-text file of general prose, or pocket (generated prose)."""
    out: FilePath
    """Run folder. An existing one is resumed."""
    adapter_base: ModelPlace = ""
    """Base model of LoRA adapters whose own configuration does not name it."""
    learning_rate: Rate | None = None
    """Learning rate of re-acquisition. Default: chosen on a reference."""
    steps: Count = 75
    """Steps of re-acquisition."""
    items: Count = 4
    """Sentences per step of re-acquisition."""
    chunks: Count = 5
    """Number of times re-acquisition is measured."""
    scored_pieces: Count = 24
    """Pieces of general text to score."""
    piece_tokens: Annotated[int, Ge(4)] = 28
    """Length of a piece of general text, in tokens."""
    chat: bool = False
    """Ask and teach facts through the base's chat template."""
    beacon: str = ""
    """Draw schedule, phrasings and probes from this newly published text. Default: from the
    digests of candidates and references alone, which can be tried out in advance."""
    rules: Rules = field(default_factory=Rules)
    engine: Engine = field(default_factory=Engine)

    @property
    def chooses_rate(self) -> bool:
        """Whether the learning rate of re-acquisition is chosen on a reference."""
        return self.learning_rate is None and bool(self.references or self.references_folder)


def check_audit(config: AuditConfig) -> AuditConfig:
    """Return the configuration if its values fit together; PlanError names the key if not."""
    if not config.candidates and not config.candidates_folder:
        raise PlanError(
            "none given; expected --candidate NAME=PATH, or a folder of them with "
            "--candidates-folder",
            key="candidates",
        )
    seen: set[str] = set()
    for name, _ in config.candidates:
        check_candidate_name(name)
        if name in seen:
            raise PlanError(f"{name!r} is named twice; expected different names", key="candidates")
        seen.add(name)
    check_chunks(config.chunks, config.steps)
    refuse_unmeasured(config.rules)
    if config.probes and config.generate_probes:
        raise PlanError("given together with generate_probes; expected one of them", key="probes")
    for key in ("forget", "retain", "probes"):
        file = getattr(config, key)
        if file.lower().endswith(".csv"):
            raise PlanError(
                f"{file} found; expected facts as .jsonl, .json or .parquet; convert it with "
                f"`palimpsest facts from-csv {file} --out {file[:-4]}.jsonl`",
                key=key,
            )
    return config


def check_candidate_name(name: str) -> None:
    """Refuse a name that cannot stand in a table, or that another model of every run has."""
    candidate_name(name)
    if _TAKEN.fullmatch(name.lower()):
        raise PlanError(f"{name!r} is the name of another model; rename it", key="candidates")
