"""What an audit would do, said before it begins: models, digests, items, passes, memory, time."""

import os
from collections.abc import Mapping

from palimpsest.audit.inputs import Inputs
from palimpsest.audit.request import LADDER
from palimpsest.cell.speed import GB, SPEEDS, duration
from palimpsest.models.load import DTYPES, outline, resolve
from palimpsest.scoring.answers import Sheet
from palimpsest.scoring.roundtrip import in_residual

RUNTIME = 4e8
"""Bytes that Python, torch and a tokenizer take before any model."""
AROUND = 10.0
"""Seconds that starting Python and torch, checking everything and writing the report take."""
LOADING = 0.5
"""Seconds that loading a model takes however small it is."""
READ = 5e8
"""Bytes of weights that are read, converted and digested in a second."""


def preview_lines(inputs: Inputs, digests: Mapping[str, str], workers: int = 1) -> tuple[str, ...]:
    """Return the plan of an audit as lines; loads no weights.

    Memory is counted in copies of one model per worker; expect it within a quarter, and the time
    within a factor of two or three.
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
        "positions per model"
    )
    bound = inputs.bound
    lines.append(
        f"screen: {bound.arrangements:,} arrangements, {bound.required:,} needed for "
        f"{bound.candidates} candidates at alpha = {bound.alpha:g}: "
        + ("can exclude" if bound.certifiable else f"underpowered, use {bound.min_probes} probes")
    )
    lines.append(_references(inputs))
    forward, trips = passes(inputs)
    which = "the screen's survivors" if request.round_trip == "survivors" else "every candidate"
    lines.append(
        f"passes: {forward} models scored, {len(_shares(inputs))} controls among them; round trip "
        f"of {request.steps} steps for all but candidates, and for {which} (at most {trips})"
    )
    lines.append(f"re-acquisition: {request.dose()} (--steps, --items, --learning-rate)")
    if inputs.with_evidence is not None:
        count = len(inputs.with_evidence.questions)
        lines.append(f"headroom: measured first, {count} questions with evidence")
    lines.append(
        f"memory: about {memory(inputs) / GB:.1f} GB per worker at any number of candidates; time: "
        f"roughly {duration(seconds(inputs, workers))} on {request.device} with {workers} "
        f"worker{'' if workers == 1 else 's'}, start-up and report included"
    )
    return (*lines, *(f"remark: {remark}" for remark in inputs.remarks))


def suitable_workers(inputs: Inputs) -> int:
    """Return as many workers as there are cores, models, and memory for; one on a GPU."""
    if inputs.request.device != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, passes(inputs)[0], int(free // memory(inputs))))


def passes(inputs: Inputs) -> tuple[int, int]:
    """Return how many models are scored and, at most, sent through the round trip."""
    models = len(inputs.models) + len(_shares(inputs))
    return models, models + (len(LADDER) // 2 if inputs.request.chooses_rate else 0)


def memory(inputs: Inputs) -> float:
    """Return the bytes a worker needs: one model in training, its batch, the frozen answers."""
    request, setting = inputs.request, inputs.setting
    width = DTYPES[request.dtype].itemsize
    vocabulary = int(inputs.outline.config.vocab_size)
    training = 4 * inputs.outline.parameters * width
    frozen = 2 * _asked(setting.sheet) + (_scored(setting.sheet) if request.references else 0)
    widest = max(page.batch.scored for page in setting.sheet.pages)
    return training + (frozen + 3 * widest) * vocabulary * 4 + RUNTIME


def seconds(inputs: Inputs, workers: int = 1) -> float:
    """Return roughly how long the command takes if every candidate survives the screen."""
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
    # A survivor is loaded once to be scored and once to be re-acquired.
    loads = (forward + trips) * (LOADING + parameters * DTYPES[request.dtype].itemsize / READ)
    return AROUND + (loads + forward * asked + trips * back) / workers


def _references(inputs: Inputs) -> str:
    from palimpsest.criteria.retraining import required_references, which_test

    rules, count = inputs.plan.rules, len(inputs.of("reference"))
    exact = required_references(rules.alpha)
    if count < rules.minimum_references:
        return (
            f"references: {count}, so no candidate can be certified; give at least "
            f"{rules.minimum_references}, better 5, and {exact} for a test free of assumptions"
        )
    test = which_test(count, rules.alpha)
    more = (
        "" if test == "exact" else f", which assumes normally distributed draws; exact from {exact}"
    )
    return f"references: {count}, compared by the {test} test{more}"


def _shares(inputs: Inputs) -> tuple[float, ...]:
    return inputs.plan.rules.control_shares if inputs.of("reference") else ()


def _tokens(sheet: Sheet) -> int:
    return sum(page.batch.ids.numel() for page in sheet.pages)


def _scored(sheet: Sheet) -> int:
    return sum(sheet.tokens)


def _asked(sheet: Sheet) -> int:
    return sum(n for q, n in zip(sheet.questions, sheet.tokens) if in_residual(q))
