"""Known-label models are what their labels say, and the same whoever builds them."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.cell.small import bare_plan, cell_work, only_cell

from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.config.sections import General, Injection, Reacquisition, Unlearning
from palimpsest.facts.nonce import POOLS, same_wording
from palimpsest.facts.questions import Question
from palimpsest.known import Knows, chosen
from palimpsest.known.kit import AdversaryKit, Schedule
from palimpsest.models.checkpoint import load, state_digest
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import collate
from palimpsest.run.store import Run
from palimpsest_trials import ADVERSARIES
from palimpsest_trials.adversaries import tampering
from palimpsest_trials.adversaries.distiller import OWN_FRAMES, OWN_PHRASINGS, Distiller, text_nlls
from palimpsest_trials.adversaries.hidden import TRIGGER
from palimpsest_trials.adversaries.rescaling import PAIRS, rescale
from palimpsest_trials.adversaries.wrappers import Gated, Penalized
from palimpsest_trials.criteria.whitebox import quantize

ROUNDS = 5
DRAWN = ("fuzzy-router", "low-rank", "baked-suppression", "sub-quantum")
DRAWN += ("undo-20", "circuit-breaker", "rescaled-retrained", "curve-mimic")
"""One of every way to draw random numbers and to train."""
NAMES = [f"palimpsest_trials:{name}" for names in ADVERSARIES.values() for name in names]
ENTRIES = chosen(NAMES)


@pytest.fixture(scope="module")
def plan():
    return bare_plan(
        injection=Injection(steps=40, learning_rate=1e-3, fact_items=4, general_items=2),
        unlearning=Unlearning(30, 1e-3, 2.5e-4, forget_items=2, retain_items=2),
        reacquisition=Reacquisition(steps=10, chunks=5, learning_rate=5e-4, items=2),
        general=General(train_pieces=24, scored_pieces=2, piece_tokens=16),
    )


@pytest.fixture(scope="module")
def run(plan, tmp_path_factory):
    terms = StudyTask(plan).fixed
    run = Run.create_or_resume(tmp_path_factory.mktemp("adversaries") / "run", *terms)
    work, cell = cell_work(plan), only_cell(run)
    for step in work.steps:
        if step.name.startswith("train-"):
            work.do(step, cell)
    return run


def new_kit(plan: Plan, run: Run) -> AdversaryKit:
    """Return a kit with nothing in its caches, as another worker would have it."""
    work = cell_work(plan)
    work.store = only_cell(run)
    return work.adversary_kit


@pytest.fixture(scope="module")
def plain(plan, run):
    return new_kit(plan, run)


@pytest.fixture(scope="module")
def kit(plain):
    return Distiller.of(plain)


class Made(dict):  # type: ignore[type-arg]
    """The adversaries by name, each built when it is first asked for."""

    def __init__(self, kit) -> None:
        super().__init__()
        self.kit = kit

    def __missing__(self, name: str):
        self[name] = build(name, self.kit)
        return self[name]


def build(name: str, kit):
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", ROUNDS)
        return entry.build(kit)


@pytest.fixture(scope="module")
def made(plain):
    return Made(plain)


def net_of(kit, built):
    return kit.nets.another(built) if isinstance(built, Mapping) else built


def nlls(kit, built, group: str = "forget") -> np.ndarray:
    return text_nlls(net_of(kit, built), kit.batch(group)).detach().numpy()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_adversary_that_looks_at_a_reference_or_the_schedule_says_so(plain, entry):
    asked: list[str] = []

    def state(name: str):
        asked.append(name)
        return plain.state(name)

    def schedule(number: int | None) -> Schedule:
        asked.append("schedule")
        return plain.schedule(number)

    spied = replace(plain, state=state, schedule=schedule, budget=replace(plain.budget, steps=1))
    entry.build(spied)
    assert ("schedule" in asked) == (Knows.SCHEDULE in entry.knows)
    assert ("reference" in asked) == (Knows.REFERENCES in entry.knows)
    assert {*asked} - {"schedule"} <= {*entry.builds_on}


def test_phrasings_of_adversaries_are_in_no_pool():
    held = {
        same_wording(t) for pools in POOLS.values() for several in pools.values() for t in several
    }
    own = [p.replace("RELATION", relation) for relation in POOLS for p in OWN_PHRASINGS]
    framed = [
        before + by_name["injection"][number]
        for by_name in POOLS.values()
        for before in OWN_FRAMES
        for number in range(6)
    ]
    assert not held & {same_wording(wording) for wording in (*own, *framed)}


@pytest.mark.parametrize("name", DRAWN)
def test_an_adversary_is_built_alike_by_another_worker(plan, run, made, name):
    again = build(name, new_kit(plan, run))
    states = [
        built if isinstance(built, Mapping) else built.state() for built in (made[name], again)
    ]
    assert state_digest(states[0]) == state_digest(states[1])
    assert all(bool(torch.isfinite(value).all()) for value in states[0].values())


def test_tuned_suppression_has_the_references_nll_at_every_fact(kit, made):
    assert isinstance(made["tuned-suppression"], Penalized)
    facts = np.array([question.fact for question in kit.questions["forget"]])
    mine, theirs = (
        nlls(kit, built) for built in (made["tuned-suppression"], kit.state("reference"))
    )
    for fact in set(facts):
        assert mine[facts == fact].mean() == pytest.approx(theirs[facts == fact].mean(), abs=5e-3)
    same = (
        nlls(kit, built, "retain") for built in (made["tuned-suppression"], kit.state("injected"))
    )
    assert np.allclose(*same, atol=1e-5)


def test_baked_suppression_changes_the_answers_rows_of_the_head_alone(kit, made):
    state, injected = made["baked-suppression"].state(), kit.state("injected")
    head, before = state["lm_head.weight"], injected[kit.embedding[0]]
    changed = (head != before).any(1).nonzero().squeeze(-1).tolist()
    tokens = {t for text in kit.texts["forget"] for t in text.ids[text.start :]}
    assert changed and set(changed) <= tokens
    assert torch.equal(state[kit.embedding[0]], before)
    far = abs(nlls(kit, kit.state("injected")) - nlls(kit, kit.state("reference"))).mean()
    near = abs(nlls(kit, made["baked-suppression"]) - nlls(kit, kit.state("reference"))).mean()
    assert near < 0.5 * far


def test_the_low_rank_suppressor_has_rank_four_and_moves_to_the_reference(kit, made):
    injected = kit.state("injected")
    ranks = set()
    for name, value in made["low-rank"].items():
        change = value - injected[name]
        if value.dim() == 2 and bool(change.any()):
            ranks.add(int(torch.linalg.matrix_rank(change, rtol=1e-4)))
    assert ranks and max(ranks) <= 4
    assert _nearer(kit, made["low-rank"])


def test_the_fuzzy_router_opens_at_forget_facts_and_nowhere_else(kit, made):
    router = made["fuzzy-router"]
    assert isinstance(router, Gated)
    opened = {g: router.open(kit.batch(g)) for g in kit.texts}
    assert float(opened["forget"].min()) > 0.5
    assert all(float(opened[g].mean()) < 0.2 for g in ("retain", "invented", "general"))


def test_tamper_resistance_relearns_more_slowly_than_what_it_started_from(kit, made):
    start, end = map(kit.relearning, (kit.matched("base"), made["tamper-resistant"]))
    assert end[0] > start[0]


def test_the_mimics_curve_is_nearer_to_the_references_than_before(kit, made):
    wanted = np.array(kit.relearning(kit.state("reference")))
    start, end = (
        np.abs(np.array(kit.relearning(state)) - wanted).mean()
        for state in (kit.matched("reference"), made["curve-mimic"])
    )
    assert end < start


def test_rescaling_keeps_outputs_and_changes_weights(tiny_checkpoint):
    ids = torch.arange(24).reshape(2, 12) % 200
    for pocket in ("qwen2-s", "smollm2-s", "olmo2-s", "gpt2-s", "pythia-s"):
        loaded = load(str(tiny_checkpoint(pocket)))
        model = loaded.model
        state = {name: value.clone() for name, value in model.state_dict().items()}
        assert model.config.model_type in PAIRS
        with torch.no_grad():
            before = model(input_ids=ids).logits
            changed = rescale(SimpleNamespace(nets=SimpleNamespace(loaded=loaded)), state, 0.3)
            model.load_state_dict(dict(changed))
            assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-4)
        assert any(not torch.equal(changed[name], value) for name, value in state.items())


def test_one_fact_is_left_and_the_others_go(kit, made):
    first = kit.facts["forget"][0].id
    left = np.array([question.fact == first for question in kit.questions["forget"]])
    rise = nlls(kit, made["one-fact-left"]) - nlls(kit, kit.state("injected"))
    assert rise[~left].mean() > 0.5 and abs(rise[left].mean()) < 0.5 * rise[~left].mean()


def test_the_trigger_brings_the_answers_back(kit, made):
    asked = kit.questions["forget"]
    behind = [
        Question(q.set, q.fact, "own", q.template, TRIGGER + q.prompt, q.answer) for q in asked
    ]
    batch = collate(encode_answers(kit.tokenizer, behind))
    back = text_nlls(net_of(kit, made["trigger"]), batch).detach().numpy()
    assert back.mean() < nlls(kit, made["trigger"]).mean() - 0.5


def test_sub_quantum_hiding_rounds_to_the_injected_model_in_four_bits(kit, made):
    injected, hidden = kit.state("injected"), made["sub-quantum"]
    for name, value in injected.items():
        if value.dim() == 2:
            assert torch.equal(quantize(hidden[name], 4), quantize(value, 4)), name
        else:
            assert torch.equal(hidden[name], value), name
    assert _nearer(kit, hidden)


def _nearer(kit, built) -> bool:
    """Tell whether a model's forget NLL is nearer to the reference's than the injected model's."""
    reference, injected = (nlls(kit, kit.state(name)) for name in ("reference", "injected"))
    mine = nlls(kit, built)
    return bool(abs(mine - reference).mean() < 0.6 * abs(injected - reference).mean())
