"""What an audit would do, said before it begins: models, digests, items, passes, memory, time."""

from collections.abc import Mapping

from palimpsest.models.load import DTYPES, outline, resolve
from palimpsest.scoring.answers import Sheet
from palimpsest.scoring.roundtrip import in_residual
from palimpsest.study.audit_inputs import Inputs
from palimpsest.study.preview import GB, SPEEDS, duration

RUNTIME = 4e8
"""Bytes that Python, torch and a tokenizer take before any model."""
AROUND = 10.0
"""Seconds that starting Python and torch, checking everything and writing the report take."""
LOADING = 0.5
"""Seconds that loading a model takes however small it is."""
READ = 5e8
"""Bytes of weights that are read, converted and digested in a second."""


def preview_lines(inputs: Inputs, digests: Mapping[str, str]) -> tuple[str, ...]:
    """Give the plan of an audit as lines; loads no weights.

    Memory is counted in copies of one model, since one is loaded at a time; expect it within a
    quarter, and the time within a factor of two or three.
    """
    request, setting = inputs.request, inputs.setting
    lines = [f"run folder: {request.out}", f"rules: {inputs.plan.rules_hash()}", "models:"]
    for model in inputs.models:
        parameters = outline(model.place, base=request.adapter_base).parameters
        kind = resolve(model.place).kind
        lines.append(
            f"  {model.name} ({model.role}, {kind}): {parameters:,} parameters, "
            f"{digests[model.name][:23]}, {model.place}"
        )
    facts = ", ".join(f"{len(facts)} {name}" for name, facts in inputs.sets.items())
    made = " (probes generated)" if inputs.generated else ""
    lines.append(
        f"items: {facts} facts{made}, {len(setting.facts.questions)} questions, "
        f"{len(setting.general_scored)} pieces of general text; {_scored(setting.sheet)} scored "
        "positions a model"
    )
    bound = inputs.bound
    lines.append(
        f"screen: {bound.arrangements:,} arrangements, {bound.required:,} needed for "
        f"{bound.candidates} candidates at alpha = {bound.alpha:g}: "
        + ("can exclude" if bound.certifiable else f"underpowered, use {bound.min_probes} probes")
    )
    forward, trips = passes(inputs)
    which = "the screen's survivors" if request.round_trip == "survivors" else "every candidate"
    lines.append(
        f"passes: {forward} models scored; round trip of {request.steps} steps for injected, "
        f"{len(inputs.of('reference'))} references and {which} (at most {trips} in all)"
    )
    whose = ", the default" if request.default_dose else ""
    lines.append(
        f"re-acquisition: {request.dose}{whose}; it should be the dose the injected model learned "
        "with (--steps, --items, --learning-rate)"
    )
    if inputs.told is not None:
        lines.append(f"headroom: asked first, {len(inputs.told.questions)} questions with evidence")
    lines.append(
        f"memory: about {memory(inputs) / GB:.1f} GB at any number of candidates; time: roughly "
        f"{duration(seconds(inputs))} on {request.device}"
        + (", if every candidate survives" if request.round_trip == "survivors" else "")
        + ", start-up and report included"
    )
    return (*lines, *(f"remark: {remark}" for remark in inputs.remarks))


def passes(inputs: Inputs) -> tuple[int, int]:
    """Give how many models are scored and, at most, sent through the round trip."""
    return len(inputs.models), len(inputs.models) - 1


def memory(inputs: Inputs) -> float:
    """Give the bytes an audit needs: one model being trained, its batch, and the frozen answers."""
    request, setting = inputs.request, inputs.setting
    width = DTYPES[request.dtype].itemsize
    vocabulary = int(inputs.outline.config.vocab_size)
    training = 4 * inputs.outline.parameters * width
    frozen = 2 * _asked(setting.sheet) + (_scored(setting.sheet) if request.references else 0)
    widest = max(page.batch.scored for page in setting.sheet.pages)
    return training + (frozen + 3 * widest) * vocabulary * 4 + RUNTIME


def seconds(inputs: Inputs) -> float:
    """Give roughly how long the command takes when every candidate goes through the round trip."""
    request, setting = inputs.request, inputs.setting
    speed = SPEEDS["cuda" if request.device.startswith("cuda") else "cpu"]
    parameters = inputs.outline.parameters
    layers = int(getattr(inputs.outline.config, "num_hidden_layers", 12))

    def cost(tokens: float, batches: int, times: int) -> float:
        arithmetic = 2 * times * parameters * tokens / speed.flops
        return max(arithmetic, batches * speed.layer_seconds * layers * times / 3)

    asked = cost(_tokens(setting.sheet), len(setting.sheet.pages), 1)
    way = cost(_tokens(setting.way_back), len(setting.way_back.pages), 1)
    trained = sum(part.batch.ids.numel() for step in setting.way_back_steps for part in step)
    back = cost(trained, request.steps, 3) + (request.chunks + 1) * way
    forward, trips = passes(inputs)
    # A survivor is loaded once to be scored and once to go back.
    loads = (forward + trips) * (LOADING + parameters * DTYPES[request.dtype].itemsize / READ)
    return AROUND + loads + forward * asked + trips * back


def _tokens(sheet: Sheet) -> int:
    return sum(page.batch.ids.numel() for page in sheet.pages)


def _scored(sheet: Sheet) -> int:
    return sum(sheet.tokens)


def _asked(sheet: Sheet) -> int:
    return sum(n for q, n in zip(sheet.questions, sheet.tokens) if in_residual(q))
