"""`trial --validate` and `--check-loss`: what a user is told without, and with, a few steps."""

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite import workloads
from benchsuite.cli.app import run_command
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.expand import plan_trial
from benchsuite.launch.launcher import load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import run_with_launcher
from benchsuite.workloads.parallel.dry import dry_account

Said = tuple[int, str, str]
Run = Callable[[dict[str, Any]], TrialRecord]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs trials in processes that are forked from one: most of what starting them takes is importing torch."""
    with load_launcher("auto") as launcher:
        yield lambda values: run_with_launcher(plan_trial(parse_trial(values)), launcher)[0]


@pytest.fixture
def trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `trial` on a small GPT with overrides: exit code, standard output, standard error."""
    file = tmp_path / "gpt.yaml"
    file.write_text(
        yaml.safe_dump(
            {"workload": "gpt_neox", "variant": "nano", "device": "cpu", "batch_size": 4, "optimizer": "sgd"}
        )
    )

    def run(*arguments: str) -> Said:
        code = run_command(["trial", str(file), *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_layout_of_512_ranks_is_counted_and_mapped(trial: Any) -> None:
    code, out, _ = trial("--validate", "-o", "parallelism={tp: 8, zero: 3}", "-o", "world_size=512")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("ok: ") and "dp 64 tp 8 zero 3, 512 ranks, global batch 256" in lines[0]
    assert lines[1] == "216,448 parameters"
    assert lines[2].startswith("node 0: tp0 dp0 | tp1 dp0")
    assert "and 56 more nodes" in out
    assert "a rank holds" in out and "reduce_scatter" in out


@pytest.mark.parametrize("asked", [("nodes=2", "ranks_per_node=4"), ("nodes=2", "world_size=8")])
def test_nodes_need_not_be_here(trial: Any, asked: tuple[str, ...]) -> None:
    options = [word for value in ("parallelism={tp: 2, zero: 3}", "device=cuda", *asked) for word in ("-o", value)]
    code, out, err = trial("--validate", *options)
    assert code == 0, err
    assert out.splitlines()[2:4] == [
        "node 0: tp0 dp0 | tp1 dp0 | tp0 dp1 | tp1 dp1",
        "node 1: tp0 dp2 | tp1 dp2 | tp0 dp3 | tp1 dp3",
    ]


def test_hsdp_is_counted_with_a_replica_on_each_node_of_the_map(trial: Any) -> None:
    code, out, _ = trial("--validate", "--format", "json", "-o", "parallelism=hsdp", "-o", "world_size=32")
    found = json.loads(out)
    assert (code, len(found["rank_map"]), found["spec"]["nodes"]) == (0, 4, 4)
    weights = found["account"]["weights_bytes"]
    assert weights == pytest.approx(4 * 216_448 / 8, rel=0.2), "sharded over the eight ranks of a node"


def test_as_json(trial: Any) -> None:
    code, out, _ = trial("--validate", "--format", "json", "-o", "parallelism=fsdp", "-o", "world_size=4")
    found = json.loads(out)
    assert (code, found["valid"], found["rank_map"]) == (0, True, [["dp0", "dp1", "dp2", "dp3"]])
    assert found["account"]["weights_bytes"] == pytest.approx(216_448, rel=0.01)
    assert found["parameters"] == 216_448


def test_what_is_illegal_says_why(trial: Any) -> None:
    options = ("--validate", "-o", "parallelism={tp: 3}", "-o", "world_size=3")
    code, out, err = trial(*options)
    assert (code, out, err) == (2, "", "error: this trial cannot run: num_heads 8 is not a multiple of tp 3\n")
    code, out, _ = trial(*options, "--format", "json")
    assert (code, json.loads(out)["reason"]) == (2, "num_heads 8 is not a multiple of tp 3")


def test_a_pipeline_is_mapped_and_counted(trial: Any) -> None:
    code, out, _ = trial("--validate", "-o", "parallelism={pp: 2, tp: 2, dp: 2}")
    assert code == 0
    assert "node 0: tp0 dp0 pp0 | tp1 dp0 pp0 | tp0 dp1 pp0" in out
    assert re.search(r"stage [01] of 2 holds the most", out) and "send" in out


def test_what_cannot_be_counted_says_why(trial: Any) -> None:
    code, out, _ = trial("--validate", "-o", "parallelism=ddp", "-o", "world_size=2", "-o", "comm_hook=powersgd")
    assert code == 0 and "not counted: comm_hook powersgd" in out


MEASURE = {"steps": 3, "warmup_steps": 2, "repeats": 1}
REAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nano", {"parallelism": "zero1", "optimizer": "adamw"}),
    (
        "nano",
        {
            "parallelism": "ddp",
            "comm_hook": "bf16",
            "optimizer": "adafactor",
            "activation_checkpointing": "selective",
        },
    ),
    ("nano", {"parallelism": {"tp": 2, "loss_parallel": True}}),
    ("nano", {"parallelism": "fsdp"}),
    ("nano", {"parallelism": {"pp": 2, "schedule": "interleaved", "microbatches": 4}, "optimizer": "adamw"}),
    ("nano", {"parallelism": "cp", "optimizer": "adam"}),
)
FULL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nano", {"parallelism": {"pp": 2, "schedule": "1f1b", "microbatches": 4}}),
    ("nano", {"parallelism": {"pp": 2, "schedule": "zero_bubble", "microbatches": 4}}),
    ("nano", {"parallelism": {"cp": 2, "cp_attention": "all_to_all"}}),
    ("nano", {"parallelism": {"pp": 2, "zero": 1}, "world_size": 4, "optimizer": "adamw"}),
    ("nano", {"parallelism": {"pp": 2, "schedule": "gpipe", "microbatches": 2}}),
    ("nano", {"parallelism": {"cp": 2, "pp": 2}, "world_size": 4}),
    ("nano", {"parallelism": {"tp": 2, "zero": 1}, "world_size": 4, "optimizer": "adamw"}),
)
"""Other schedules, attention that changes heads for parts, and other pairs of modes on four ranks."""


@pytest.mark.parametrize(
    ("variant", "changes"),
    [*REAL, *(pytest.param(*each, marks=pytest.mark.full) for each in FULL)],
    ids=lambda value: str(value),
)
def test_counts_are_those_of_a_real_step(run: Run, variant: str, changes: dict[str, Any]) -> None:
    """Of experts only about: real tokens do not spread evenly."""
    values: dict[str, Any] = {"workload": "gpt_neox", "variant": variant, "device": "cpu", "batch_size": 4}
    values |= {"world_size": 2, "optimizer": "sgd", "data": {"source": "synthetic"}, "measure": MEASURE, **changes}
    spec, record = parse_trial(values), run(values)
    assert record.status == "ok", record.reason
    workload = workloads.load(workloads.WORKLOADS, "gpt_neox")
    shape = workload.variants[variant]
    dry = [dry_account(workload, shape, spec.layout, spec, spec.rank_batch, rank) for rank in range(spec.ranks)]
    real, tokens = record.figures, 0.3 if variant == "nano_moe" else 0.01
    assert real.weights_bytes == max(account.weights_bytes for account in dry)
    assert real.gradients_bytes == max(account.gradients_bytes for account in dry)
    assert real.optimizer_bytes == pytest.approx(max(account.optimizer_bytes for account in dry), rel=0.01, abs=1024)
    assert real.wire_bytes_per_step == pytest.approx(max(account.wire_bytes for account in dry), rel=tokens)
    assert real.activations_bytes == pytest.approx(max(account.activations_bytes for account in dry), rel=0.1)


@pytest.mark.parametrize("degrees", [{"pp": 2}, pytest.param({"tp": 2, "pp": 2}, marks=pytest.mark.full)])
@pytest.mark.full
def test_counts_of_a_real_step_say_what_is_sharded_in_a_pipeline(run: Run, degrees: dict[str, int]) -> None:
    """A lone rank cannot count ZeRO 2 and 3 there: two data-parallel ranks hold half of what replicas do."""
    ranks = 2 * prod(degrees.values())
    base = {"workload": "gpt_neox", "variant": "nano", "device": "cpu", "batch_size": 4, "world_size": ranks}
    base |= {"optimizer": "adamw", "data": {"source": "synthetic"}, "measure": MEASURE}
    found = []
    for zero in range(4):
        record = run(base | {"parallelism": degrees | {"zero": zero}})
        assert record.status == "ok", record.reason
        found.append(record.figures)
    replicas, half = found[0], pytest.approx(0.5, rel=0.03)
    assert [one.optimizer_bytes / replicas.optimizer_bytes for one in found[1:]] == [half] * 3
    weights = [one.weights_bytes / replicas.weights_bytes for one in found[1:]]
    assert weights == [1, half, half]
    gradients = [one.gradients_bytes / found[2].weights_bytes for one in found]
    assert gradients[2:] == [pytest.approx(1, rel=0.2)] * 2 and min(gradients[:2]) > 1.9


def test_float16_is_counted_too(trial: Any) -> None:
    code, out, _ = trial("--validate", "-o", "parallelism=ddp", "-o", "world_size=2", "-o", "precision=fp16")
    assert code == 0 and "a rank holds" in out


def test_check_loss_trains_and_compares(trial: Any) -> None:
    code, out, err = trial("--check-loss", "-o", "parallelism={tp: 2}")
    assert code == 0, err
    assert out.startswith("ok: gpt_neox nano, tp 2, 2 ranks, fp32: over 5 steps")


def test_check_loss_as_json(trial: Any) -> None:
    code, out, _ = trial("--check-loss", "--format", "json", "-o", "parallelism=fsdp", "-o", "world_size=2")
    found = json.loads(out)
    assert (code, found["equal"], len(found["losses"])) == (0, True, 5)
    assert found["losses"] == pytest.approx(found["reference_losses"], rel=1e-5)
