"""The order of a plan's trials: rounds of repeats, shuffled by a seed, and what records say of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.claims import Claims
from tests.runner.test_sweep import Rehearsal, Silence, made_plan

BATCHES = [1, 2, 3, 4, 5, 6]


def order(seed: int | None, repeats: int = 3) -> list[tuple[int, int | str | None]]:
    plan = made_plan(repeats, grid={"batch_size": BATCHES})
    return [(item.repeat, item.point.spec.batch_size) for item in sweeping.interleave_repeats(plan, seed)]


def test_a_round_is_over_before_the_next_begins() -> None:
    assert order(None) == [(repeat, batch) for repeat in range(3) for batch in BATCHES]
    for seed in range(5):
        shuffled = order(seed)
        assert [repeat for repeat, _ in shuffled] == [0] * 6 + [1] * 6 + [2] * 6
        assert sorted(shuffled) == order(None)


def test_a_seed_shuffles_each_round_its_own_way_and_always_the_same() -> None:
    rounds = [tuple(batch for _, batch in order(7)[first : first + 6]) for first in (0, 6, 12)]
    assert len(set(rounds)) == 3
    assert order(7) == order(7) and order(7) != order(8)


def test_points_with_fewer_repeats_leave_the_rounds() -> None:
    plan = made_plan(include=[{"batch_size": 3, "measure.repeats": 1}])
    found = [(item.repeat, item.point.spec.batch_size) for item in sweeping.interleave_repeats(plan)]
    assert found == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]


def run(plan: sweeping.Plan, store: ResultsStore, launcher: Rehearsal, seed: int | None) -> None:
    claims = Claims.of(store.path, "default")
    todo = sweeping.shared_status(plan, store, "default", frozenset(), claims, seed).todo
    sweeping.run(plan, todo, store, launcher, "default", Silence(), claims)


@pytest.mark.parametrize("seed", [None, 3])
def test_what_ran_is_what_was_planned_and_records_say_so(tmp_path: Path, seed: int | None) -> None:
    store, launcher = ResultsStore(tmp_path), Rehearsal()
    run(made_plan(2, grid={"batch_size": BATCHES}), store, launcher, seed)
    assert [batch for batch, _ in launcher.launched] == [batch for _, batch in order(seed, 2)]
    records = store.records()
    assert [record.env["order"] for record in records] == [{"number": n, "seed": seed} for n in range(12)]
    assert list(store.frame()["env.order.number"]) == [*range(12)]


def test_records_say_which_world_sizes_were_planned_with_their_kind_of_batch(tmp_path: Path) -> None:
    whole = [{"world_size": n, "batch_size": None, "global_batch_size": 8, "parallelism": "ddp"} for n in (1, 4)]
    plan = made_plan(1, grid={"world_size": [2, 1], "parallelism": ["ddp"]}, include=whole)
    run(plan, ResultsStore(tmp_path), Rehearsal(), None)
    told = {
        (record.spec["world_size"], record.spec["global_batch_size"]): record.env["planned_world_sizes"]
        for record in ResultsStore(tmp_path).records()
    }
    assert told == {(1, None): [1, 2], (2, None): [1, 2], (1, 8): [1, 4], (4, 8): [1, 4]}


def test_a_sweep_that_was_interrupted_goes_on_in_the_same_order(tmp_path: Path) -> None:
    store, plan = ResultsStore(tmp_path), made_plan(2, grid={"batch_size": BATCHES})
    stopped = Rehearsal(lambda number: KeyboardInterrupt() if number == 4 else None)
    with pytest.raises(KeyboardInterrupt):
        run(plan, store, stopped, 3)
    rest = Rehearsal()
    run(plan, store, rest, 3)
    batches = [batch for batch, _ in (*stopped.launched[:4], *rest.launched)]
    assert batches == [batch for _, batch in order(3, 2)]


def test_a_dry_run_prints_trials_in_the_order_of_running(
    tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "measure": {"repeats": 2}}
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"name": "s", "base": base, "grid": {"batch_size": BATCHES}}))

    def printed(*arguments: object) -> list[str]:
        code, out, err = run_cli("sweep", file, "--dry-run", "--store", tmp_path / "store", *arguments)
        assert code == 0, err
        return [line.split()[-1] for line in out.splitlines()]

    assert printed() == ["2"] * len(BATCHES), "repeats of a point are one line"
    assert printed("--order-seed", 3) == [str(batch) for _, batch in order(3, 2)]
