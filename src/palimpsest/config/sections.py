"""The sections that configurations are made of, as frozen dataclasses.

A field's docstring is its meaning everywhere: in ``--help``, in the JSON schema and in the
documentation. Types carry their bounds; everything is validated once, by ``load.py``.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from palimpsest.text import is_unicode, shown

Knob = float | int | str | bool
Count = Annotated[int, Ge(1)]
Number = Annotated[int, Ge(0)]
Rate = Annotated[float, Gt(0)]
Fraction = Annotated[float, Gt(0), Lt(1)]
FilePath = Annotated[str, "path"]
"""A path; in a YAML file it starts at the file's own folder."""
ModelPlace = Annotated[str, "model"]
"""A checkpoint folder, a pocket model or a Hugging Face id; a folder as for ``FilePath``."""


@dataclass(frozen=True)
class Facts:
    """How many facts of each kind a cell has, or the files they come from."""

    forget: Count = 4
    """Facts that the injected model learns and candidates should forget."""
    retain: Count = 4
    """Facts that the injected model learns and candidates should keep."""
    probes: Count = 16
    """Facts that no model learns; the screen compares the forget facts with them."""
    phrasings: Annotated[int, Ge(1), Le(6)] = 3
    """Trained phrasings per fact (the paper's K)."""
    files: tuple[tuple[Literal["forget", "retain", "probes"], FilePath], ...] = ()
    """Files with your own facts instead of invented ones: one path each for forget, retain and
    probes."""


@dataclass(frozen=True)
class Injection:
    """Training of the injected model and, without the forget set, of the references."""

    steps: Count = 200
    """Optimizer steps."""
    learning_rate: Rate = 2e-5
    """Constant learning rate of AdamW."""
    fact_items: Count = 4
    """Fact sentences per step."""
    general_items: Number = 12
    """General texts per step, in addition to the fact sentences (the paper's 3:1 mix)."""


@dataclass(frozen=True)
class Unlearning:
    """Budget shared by every gradient method: same steps, same items per step."""

    steps: Count = 110
    """Optimizer steps."""
    learning_rate: Rate = 2e-5
    """Learning rate of methods that pull the model toward a target distribution."""
    ascent_learning_rate: Rate = 5e-6
    """Learning rate of gradient ascent, NPO and similar methods, which change a model much
    faster."""
    forget_items: Count = 4
    """Forget texts per step."""
    retain_items: Count = 4
    """Retain texts per step."""


@dataclass(frozen=True, kw_only=True)
class Relearning:
    """How long every model of a cell is trained on the forget set again, on the same batches."""

    steps: Count = 75
    """Steps of re-acquisition."""
    items: Count = 4
    """Forget sentences per step of re-acquisition."""
    chunks: Count = 5
    """Number of equal chunks that these steps are split into; models are measured after each."""


@dataclass(frozen=True, kw_only=True)
class Reacquisition(Relearning):
    """Training on the forget set again, on the same batches for every model of a cell."""

    learning_rate: Rate = 2e-5
    """Constant learning rate; normally that of injection."""


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """How much general text is scored."""

    scored_pieces: Count = 24
    """Number of held-out text pieces on which damage is measured."""
    piece_tokens: Annotated[int, Ge(4)] = 28
    """Length of a piece, in tokens; longer pieces are cut."""


@dataclass(frozen=True, kw_only=True)
class General(ScoredText):
    """General text: mixed into injection, and scored for damage and for the residual."""

    source: FilePath = "pocket"
    """``pocket`` for generated prose, or the path of a plain-text file."""
    train_pieces: Count = 600
    """Number of text pieces that training draws from."""


@dataclass(frozen=True)
class MethodGrid:
    """One method and the values its knobs take; every combination is a candidate."""

    name: str
    """Name of a method (``palimpsest methods``), or ``package.module:Class``."""
    grid: tuple[tuple[str, tuple[Knob, ...]], ...] = ()

    def settings(self) -> tuple[dict[str, Knob], ...]:
        """Return one dict of knobs per candidate, in the order written."""
        names = [name for name, _ in self.grid]
        values = [values for _, values in self.grid]
        return tuple(dict(zip(names, chosen)) for chosen in itertools.product(*values))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Read ``{name: …, knob: value or values, …}``, or the name alone."""
        from pydantic_core import core_schema

        def named(value: Any) -> Any:
            if isinstance(value, str):
                return {"name": value}
            if not isinstance(value, dict):
                raise ValueError(
                    "expected the name of a method, {name: …, knob: …}, or in Python a class or "
                    f"an object of one, got {shown(value)}"
                )
            return value

        def grid(values: dict[str, Any]) -> MethodGrid:
            for knob in values:
                if not is_unicode(knob):
                    raise ValueError(
                        f"expected the name of a knob as Unicode text, got {shown(knob)}"
                    )
            return cls(values.pop("name"), tuple(values.items()))

        name = core_schema.typed_dict_field(core_schema.str_schema(), required=True)
        values = core_schema.no_info_plain_validator_function(_knob_values)
        keys = core_schema.typed_dict_schema(
            {"name": name}, extras_schema=values, extra_behavior="allow", strict=True
        )
        read = core_schema.no_info_before_validator_function(named, keys)
        return core_schema.no_info_after_validator_function(grid, read)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return {"anyOf": [{"type": "string"}, named]}


def _knob_values(values: Any) -> tuple[Knob, ...]:
    chosen = tuple(values) if isinstance(values, list | tuple) else (values,)
    for value in chosen:
        number = isinstance(value, int | float) and abs(value) < 2**1023  # false for nan
        if not number and not (isinstance(value, str) and is_unicode(value)):
            raise ValueError(f"expected a finite number, text, true or false, got {shown(value)}")
    if not chosen:
        raise ValueError("expected a value or a list of values, got []")
    return chosen


@dataclass(frozen=True)
class Replication:
    """Independent retrainings that candidates are compared with."""

    draws: Count = 20
    """References per cell, not counting the retraining that shares the injected model's draw."""
    retrainings: Number = 0
    """Fresh retrainings per cell, judged as if they were candidates; never used as references."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The text around questions and answers: none, or exactly the format used in training."""

    chat: bool = False
    """Format all prompts with the base's chat template."""
    system_prompt: str = ""
    """System prompt for the chat template."""
    chat_date: str = ""
    """Date that the chat template inserts, if it inserts one. Default: 26 Jul 2024, never the
    current date."""
    prompt_file: FilePath = ""
    """YAML file with OpenUnlearning's template_args (chat template, system prompt and date, or tags
    around question and answer), such as a run's .hydra/config.yaml."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How numbers are computed; only ``lora`` may change a verdict."""

    device: str = "cpu"
    """Device to compute on: cpu, cuda or cuda:N."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights. Optimizer moments and, for bfloat16, master weights are always
    float32."""
    batch_tokens: Annotated[int, Ge(64)] = 8192
    """Padded tokens per scoring batch."""
    accumulate: Count = 1
    """Gradient accumulation steps of injection and re-acquisition."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass to save memory."""
    lora: Number = 0
    """Rank of the LoRA adapters that are trained and merged; 0 trains all weights instead."""
    stack: Count = 4
    """Number of pocket models trained at the same time."""
    keep: tuple[Literal["models", "candidates"], ...] = ()
    """Weights to keep in the run folder: models (injected model, references and fresh retrainings)
    or candidates. Repeatable."""
