"""Every mode trains as one process does that handles the same microbatches: every step's loss, and final weights."""

from importlib.util import find_spec

import pytest

from benchsuite.workloads import MODES
from benchsuite.workloads.engine import ENGINES
from benchsuite.workloads.layout import ONE_RANK
from benchsuite.workloads.parallel.check import TOLERANCE, tolerance_of
from tests.workloads.parallel.cases import DEGREES, RANKS, SEES_MODELS, TECHNIQUES, Asked, cases, every_in_bf16, kinds
from tests.workloads.parallel.conftest import DEADLINE_S, Jobs
from tests.workloads.parallel.job import LATE_MODES, LATE_S, LATE_STEPS

SMOKE = [asked for ranks in RANKS for asked in cases(ranks, "smoke")]
NORMAL = [asked for ranks in RANKS for asked in cases(ranks, "normal")]
INSTALLED = [asked for ranks in (2, 4) for asked in cases(ranks, "engines")]
FEW_INSTALLED = list(cases(2, "few engines"))
BF16 = [asked for ranks in RANKS for asked in cases(ranks, "bf16")]
EVERY = [asked for ranks in RANKS for asked in cases(ranks, "full")]
pytestmark = pytest.mark.timeout(DEADLINE_S)  # the first test waits for the job of them all


@pytest.mark.parametrize("asked", SMOKE, ids=lambda asked: asked.name)
def test_each_mode_trains_as_one_process_does(jobs: Jobs, asked: Asked) -> None:
    check(jobs, asked, "smoke")


def test_no_mode_is_without_a_smoke() -> None:
    assert {asked.mode for asked in SMOKE} == {mode for mode in MODES if mode not in ONE_RANK}


@pytest.mark.parametrize("asked", NORMAL, ids=lambda asked: asked.name)
def test_trains_as_one_process_does(jobs: Jobs, asked: Asked) -> None:
    check(jobs, asked, "normal")


@pytest.mark.parametrize(
    "asked",
    [pytest.param(one, marks=pytest.mark.weekly if one.world_size > 2 else ()) for one in BF16],
    ids=[one.name for one in BF16],
)
def test_losses_and_gradients_in_bf16_are_those_of_one_process(jobs: Jobs, asked: Asked) -> None:
    """Several roundings of 8 bits apart, which 0.4 % each are: a mode that sums up something else is not as near."""
    check(jobs, asked, "bf16")
    found = jobs.finding(asked.world_size, "bf16", asked.name)
    assert found["loss_difference"] <= 1e-3 and found["distance"] <= 0.02, found
    if asked.mode in ("ddp", "zero1", "zero2", "fsdp", "hsdp", "pp"):  # nothing is added up in another order
        assert found["loss_difference"] <= 1e-6, found


@pytest.mark.full
@pytest.mark.parametrize("asked", every_in_bf16(), ids=lambda asked: asked.name)
def test_every_mode_in_bf16(jobs: Jobs, asked: Asked) -> None:
    check(jobs, asked, "every bf16")


@pytest.mark.engines
@pytest.mark.parametrize("asked", FEW_INSTALLED, ids=lambda asked: asked.name)
def test_each_stage_of_an_engine_trains_as_one_process_does(jobs: Jobs, asked: Asked) -> None:
    check_engine(jobs, asked, "few engines")


@pytest.mark.engines
@pytest.mark.weekly
@pytest.mark.parametrize("asked", INSTALLED, ids=lambda asked: asked.name)
def test_engines_of_other_packages_train_as_one_process_does(jobs: Jobs, asked: Asked) -> None:
    check_engine(jobs, asked, "engines")


def check_engine(jobs: Jobs, asked: Asked, which: str) -> None:
    engine = ENGINES[asked.mode["engine"]]
    if find_spec(str(engine.package)) is None:
        pytest.skip(f"{engine.package} is not installed: {engine.install}")
    assert asked.valid(), asked.problem()
    check(jobs, asked, which)


@pytest.mark.full
@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.name)
def test_the_full_matrix_trains_as_one_process_does(jobs: Jobs, asked: Asked) -> None:
    check(jobs, asked, "full")


def check(jobs: Jobs, asked: Asked, which: str) -> None:
    found = jobs.finding(asked.world_size, which, asked.name)
    assert "error" not in found, found["error"]
    case = asked.case()
    assert len(found["losses"]) == len(found["reference_losses"]) == case.steps
    assert found["losses"] == pytest.approx(found["reference_losses"], rel=tolerance_of(case.compute))
    assert found["equal"], found
    if not found["rounded"]:
        assert found["weight_difference"] <= 100 * TOLERANCE, found


def test_every_mode_is_among_them_with_every_number_of_ranks_it_can_have() -> None:
    expected = {(mode, ranks) for mode in MODES if mode not in ONE_RANK for ranks in RANKS}
    asked = {(one.mode, one.world_size) for one in EVERY if isinstance(one.mode, str)}
    assert expected - asked == {("hsdp", 2), ("pp", 8)}  # nothing to shard over; fewer pieces than stages


def test_every_composed_mode_and_every_setting_is_among_those_that_are_always_tried() -> None:
    assert all(mode in [one.mode for one in (*NORMAL, *BF16)] for mode in DEGREES)
    settings = {setting for _, compute in TECHNIQUES for setting in compute.items()}
    assert settings == {setting for one in NORMAL for setting in one.compute.items()}


def test_every_model_is_tried_with_every_kind_of_mode_that_sees_it() -> None:
    possible = {(kind, one.model) for one in EVERY if isinstance(one.mode, str) for kind in kinds(one)}
    tried = {(kind, one.model) for one in (*SMOKE, *NORMAL) for kind in kinds(one)}
    assert {kind for kind, _ in possible} == {*SEES_MODELS}
    assert possible <= tried


def test_compositions_are_among_them() -> None:
    layouts = [one.case().layout for one in (*NORMAL, *BF16)]
    composed = {(layout.tp > 1, layout.pp > 1, layout.dp > 1) for layout in layouts}
    assert {(True, True, False), (True, False, True), (False, True, True), (True, True, True)} <= composed


def test_a_mode_that_does_not_average_is_found_out(jobs: Jobs) -> None:
    """The check can fail: ranks that each train alone are not one training."""
    found = jobs.finding(2, "normal", "ranks that do not exchange")
    assert not found["equal"]
    assert found["weight_difference"] > 1e-2


@pytest.mark.weekly
@pytest.mark.parametrize("mode", LATE_MODES)
def test_waiting_for_another_rank_is_exchange_and_in_a_pipeline_bubble(jobs: Jobs, mode: str) -> None:
    """What rank 0 waits for rank 1, which comes late to every step, is in no other part."""
    found = jobs.finding(2, "waits", f"waits under {mode}")
    late_s = LATE_S * LATE_STEPS
    assert found["bubble" if mode == "pp" else "communication"] >= 0.5 * late_s, found
    computing = sum(seconds for part, seconds in found.items() if part in ("forward", "backward", "optimizer"))
    assert computing < late_s, found
