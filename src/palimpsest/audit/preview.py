"""What an audit would do, said before it begins: models, digests, items, passes, memory, time."""

from collections.abc import Mapping

from palimpsest import cost
from palimpsest.audit.inputs import Inputs
from palimpsest.audit.request import LADDER
from palimpsest.cost import Size
from palimpsest.models.device import check_room
from palimpsest.models.load import outline, resolve
from palimpsest.scoring.answers import Sheet
from palimpsest.scoring.roundtrip import in_residual

AROUND = 10.0
"""Seconds that starting Python and torch, checking everything and writing the report take."""


def preview_lines(inputs: Inputs, digests: Mapping[str, str], workers: int = 1) -> tuple[str, ...]:
    """Return the plan of an audit as lines; loads no weights.

    Memory and time are those of one model per worker, as ``cost.py`` counts them.
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
        + (
            "enough to exclude one"
            if bound.certifiable
            else f"underpowered, use {bound.min_probes} probes"
        )
    )
    lines.append(_references(inputs))
    forward, trips = passes(inputs)
    which = "the screen's survivors" if request.round_trip == "survivors" else "every candidate"
    lines.append(
        f"passes: {forward} models scored, including {len(_shares(inputs))} controls; round trip "
        f"of {request.steps} steps for {which} and all other models (at most {trips} round trips)"
    )
    lines.append(f"re-acquisition: {request.dose()} (--steps, --items, --learning-rate)")
    if inputs.with_evidence is not None:
        count = len(inputs.with_evidence.questions)
        lines.append(f"headroom: measured first, {count} questions with evidence")
    total = cost.total(memory(inputs), seconds(inputs, workers), request.device, workers)
    return (*lines, total, *(f"remark: {remark}" for remark in inputs.remarks))


def suitable_workers(inputs: Inputs) -> int:
    """Return as many workers as there are cores, models, and memory for; one for each GPU."""
    return cost.workers_for(memory(inputs), inputs.request.device, passes(inputs)[0])


def passes(inputs: Inputs) -> tuple[int, int]:
    """Return how many models are scored and, at most, sent through the round trip."""
    models = len(inputs.models) + len(_shares(inputs))
    return models, models + (len(LADDER) // 2 if inputs.request.chooses_rate else 0)


def memory(inputs: Inputs) -> float:
    """Return the bytes a worker needs on its device: one model in training, or scored.

    On a CPU the frozen models' answers are there too.
    """
    request, setting = inputs.request, inputs.setting
    size, parts = _size(inputs), [part for step in setting.way_back_steps for part in step]
    pages, device, dtype = setting.sheet.pages, request.device, request.dtype
    step, page = (
        cost.Step(max(b.ids.numel() for b in batches), max(b.scored for b in batches))
        for batches in ([part.batch for part in parts], [page.batch for page in pages])
    )
    trained = cost.training(
        size,
        step,
        device=device,
        dtype=dtype,
        checkpointing=request.checkpointing,
        optimizer=request.optimizer,
        lora=request.lora,
    )
    frozen = 2 * _asked(setting.sheet) + (_scored(setting.sheet) if request.references else 0)
    beside = cost.answers(size, frozen) if request.device == "cpu" else 0.0
    return max(trained.device, cost.scoring(size, page, device=device, dtype=dtype).device) + beside


def check_memory(inputs: Inputs) -> None:
    """Refuse an audit that its device cannot hold, before anything is computed."""
    check_room(memory(inputs), inputs.request.device, "this audit")


def seconds(inputs: Inputs, workers: int = 1) -> float:
    """Return roughly how long the command takes if every candidate survives the screen."""
    request, setting = inputs.request, inputs.setting
    size, device = _size(inputs), request.device

    def asked(sheet: Sheet) -> float:
        return cost.seconds(size, _tokens(sheet), device=device, batches=len(sheet.pages))

    trained = sum(part.batch.ids.numel() for step in setting.way_back_steps for part in step)
    back = cost.seconds(size, trained, device=device, batches=request.steps, passes=3)
    back += (request.chunks + 1) * asked(setting.way_back)
    forward, trips = passes(inputs)
    # A survivor is loaded once to be scored and once to be re-acquired.
    loads = (forward + trips) * cost.loading(size, device=device, dtype=request.dtype)
    return AROUND + (loads + forward * asked(setting.sheet) + trips * back) / workers


def _size(inputs: Inputs) -> Size:
    return cost.size_of(inputs.outline.config, inputs.outline.parameters)


def _references(inputs: Inputs) -> str:
    from palimpsest.criteria.retraining import required_references, which_test

    rules, count = inputs.plan.rules, len(inputs.of("reference"))
    exact = required_references(rules.alpha)
    if count < rules.minimum_references:
        return (
            f"references: {count}, so no candidate can be certified; give at least "
            f"{rules.minimum_references}; 5 are better, and with {exact} the test is exact"
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
