"""Emulated devices: names and times, legality, exact waits, and trials from the plan to the summary."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import benchsuite
from benchsuite.analysis.metrics import utilization_mlperf
from benchsuite.contract.emulated_devices import min_au, profile_of, profiles, step_s
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.emulated_steps import problem, with_step
from benchsuite.grid.expand import load_sweep, plan_trial
from benchsuite.inside.samples import Block, RankSamples
from benchsuite.results.store.record import TrialFigures, TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.single_trial import run_trial
from benchsuite.trial.emulated import EmulatedDevice, wait_until
from tests.helpers.made import made_spec
from tests.helpers.snapshots import compare_messages

Cli = Callable[..., tuple[int, str, str]]


class TestProfiles:
    @pytest.mark.parametrize(
        ("device", "workload", "seconds"),
        [
            ("emulated:a100", "unet3d", 0.636),
            ("emulated:h100", "unet3d", 0.323),
            ("emulated:a100", "resnet50", 0.435),
            ("emulated:h100", "resnet50", 0.224),
            ("emulated:a100/cosmoflow", "unet3d", 0.00551),
            ("emulated:h100/cosmoflow", "unet3d", 0.0035),
            ("emulated:v100", "bert", 0.968),
            ("emulated:180ms", "gpt_neox", 0.18),
            ("emulated:3500us", "bert", 0.0035),
            ("emulated:1.5s", "bert", 1.5),
            ("emulated:h100", "bert", None),
        ],
    )
    def test_times(self, device: str, workload: str, seconds: float | None):
        assert step_s(device, workload) == (None if seconds is None else pytest.approx(seconds))

    @pytest.mark.parametrize(
        ("device", "workload", "bytes_per_s"),
        [
            ("emulated:a100", "unet3d", 1613.53e6),
            ("emulated:h100", "unet3d", 3177.10e6),
            ("emulated:a100", "resnet50", 105.43e6),
            ("emulated:h100", "resnet50", 204.75e6),
            ("emulated:a100/cosmoflow", "unet3d", 513.34e6),
            ("emulated:h100/cosmoflow", "unet3d", 808.14e6),
        ],
    )
    def test_what_an_accelerator_needs_from_storage(self, device: str, workload: str, bytes_per_s: float):
        """Batch x record / time, as MLPerf Storage's configurations give it."""
        known = profile_of(device, workload)
        assert known is not None
        assert known.batch_size * known.record_bytes / known.step_s == pytest.approx(bytes_per_s, rel=1e-4)

    def test_thresholds(self):
        assert [min_au(name) for name in ("unet3d", "resnet50", "cosmoflow", "bert")] == [0.9, 0.9, 0.7, 0.9]
        assert min_au("gpt_neox") is None

    def test_every_profile_says_by_whom(self):
        assert all(len(profile.source) > 10 for profile in profiles())

    def test_unknown_devices_are_refused(self) -> None:
        cases = [
            "emulated:h1000",
            "emulated:0ms",
            "emulated:180",
            "emulated:h100/bert",
            "emulated:from-record",
        ]

        def message(device: str) -> str:
            with pytest.raises(UserError) as caught:
                made_spec(device=device)
            return str(caught.value)

        compare_messages("emulated_devices", cases, message)


class TestLegality:
    def spec(self, **changes: Any) -> Any:
        return made_spec(**{"workload": "unet3d", "device": "emulated:a100", "batch_size": 7, **changes})

    @pytest.mark.parametrize(
        "changes", [{}, {"parallelism": "ddp", "world_size": 8}, {"device": "emulated:20ms", "batch_size": 3}]
    )
    def test_legal(self, changes: dict[str, Any]):
        assert problem(self.spec(**changes)) is None

    def test_what_means_nothing_is_refused_with_its_reason(self) -> None:
        cases = [
            {"data": {"source": "memory"}},
            {"data": {"source": "synthetic"}},
            {"parallelism": {"tp": 2}, "world_size": 2},
            {"parallelism": "fsdp", "world_size": 2},
            {"precision": "bf16"},
            {"compile": True},
            {"grad_accum": 2, "batch_size": 4},
            {"batch_size": 4},
            {"workload": "gpt_neox"},
        ]
        compare_messages("emulated_trials", cases, lambda changes: problem(self.spec(**changes)))

    def test_many_ranks_on_few_cores_are_not_oversubscribed(self):
        from benchsuite.analysis.caveats import caveats

        spec = self.spec(parallelism="ddp", world_size=8, device="emulated:1ms")
        blocks = [emulated_block([0.001] * 4)]
        results = [RankSamples(rank, "ok", blocks=blocks) for rank in range(8)]
        assert "oversubscribed" not in [name for name, _ in caveats(spec, results, 2, True)]


def emulated_block(steps: list[float], **changes: Any) -> Block:
    """A loader block of one rank, all of it computation."""
    samples = 4 * len(steps)
    fields: dict[str, Any] = {"consumed_samples": samples, "produced_samples": samples} | changes
    return Block("loader", 0.0, sum(steps), {"load": [0.0] * len(steps), "forward": steps}, **fields)


class TestRecords:
    def record(self, **changes: Any) -> TrialRecord:
        base: dict[str, Any] = {
            "record_id": "aa11",
            "trial_id": "point1.default.0",
            "point_id": "point1",
            "session": "default",
            "repeat": 0,
            "sweep": "s",
            "status": "ok",
            "started_at": "2026-01-01T00:00:00+00:00",
            "finished_at": "2026-01-01T00:00:01+00:00",
            "spec": made_spec().model_dump(mode="json"),
            "env": {},
            "figures": TrialFigures(ceiling_step_s=0.0125, step_s_mean=0.02),
        }
        return TrialRecord(**(base | changes))

    @pytest.fixture
    def store(self, tmp_path: Path) -> ResultsStore:
        made = ResultsStore(tmp_path / "store")
        made.append(self.record())
        again = {"record_id": "bb22", "trial_id": "point1.default.1", "figures": TrialFigures(ceiling_step_s=0.0135)}
        made.append(self.record(**again))
        other = {"record_id": "cc33", "trial_id": "point2.default.0", "point_id": "point2"}
        made.append(self.record(**other, figures=TrialFigures(step_s_mean=0.25)))
        made.append(self.record(record_id="dd44", trial_id="q.default.0", point_id="q", status="failed"))
        return made

    @pytest.mark.parametrize(
        ("name", "device"),
        [
            ("aa11", "emulated:12.5ms from-record aa11"),
            ("point1", "emulated:13ms from-record point1"),
            ("point2.default", "emulated:250ms from-record point2.default"),
        ],
    )
    def test_time_of_a_record(self, store: ResultsStore, name: str, device: str):
        found = with_step(made_spec(device=f"emulated:from-record {name}"), store.path)
        assert found.device == device
        assert parse_trial(found.model_dump()).emulated_step_s == pytest.approx(float(device[9:].split("ms")[0]) / 1e3)

    def test_what_has_no_time_is_refused(self, store: ResultsStore) -> None:
        cases = [
            "zz",
            "point",
            "dd44",
        ]

        def message(name: str) -> str:
            with pytest.raises(UserError) as caught:
                with_step(made_spec(device=f"emulated:from-record {name}"), store.path)
            return str(caught.value)

        compare_messages("emulated_from_record", cases, message, {str(store.path): "STORE"})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"batch_size": 8}, "its step is one of rank_batch 4; this trial has"),
            ({"variant": "resnet18"}, "its step is one of variant tiny; this trial has"),
            ({"model": {"seq_len": 9}}, "its step is one of model as its variant; this trial has .*, model seq_len 9"),
        ],
    )
    def test_a_step_of_something_else_is_refused(self, store: ResultsStore, changes: dict[str, Any], words: str):
        with pytest.raises(UserError, match=words):
            with_step(made_spec(device="emulated:from-record aa11", **changes), store.path)


class TestWaiting:
    @pytest.mark.weekly
    def test_waits_are_exact_and_idle(self):
        """What a step ends late is below 0.2 ms on average, at a small part of a core."""
        device = EmulatedDevice(step_s=0.005, feed=dict, in_line=True)
        errors = []
        used = psutil.Process().cpu_times()
        started = time.perf_counter()
        for _ in range(100):
            end = time.perf_counter() + device.step_s
            errors.append(wait_until(end) - end)
        now, wall = psutil.Process().cpu_times(), time.perf_counter() - started
        assert min(errors) >= 0
        assert statistics.median(errors) < 0.0002
        assert (now.user + now.system - used.user - used.system) / wall < 0.2

    def device(self, delays: list[float], step: float = 0.01, in_line: bool = False) -> tuple[EmulatedDevice, Any]:
        """A device whose batches take these times to come, and the times of its steps."""
        left = iter(delays)

        def feed() -> dict[str, torch.Tensor]:
            time.sleep(next(left))
            return {}

        made = EmulatedDevice(step_s=step, feed=feed, in_line=in_line)
        made.start()
        for _ in range(len(delays) - (0 if in_line else 1)):
            batch = made.next_batch()
            made.mark("load")
            made.step(batch)
        return made, made.stop()

    @pytest.mark.weekly
    def test_steps_take_their_time_exactly(self):
        _, times = self.device([0.0] * 6)
        assert times.parts["forward"] == pytest.approx([0.01] * 5, abs=1e-9)
        assert times.parts["load"][1:] == pytest.approx([0.0] * 4, abs=1e-9)
        assert times.end_s - times.start_s == pytest.approx(sum(times.step_s()))

    @pytest.mark.weekly
    def test_batches_are_asked_for_while_the_device_is_busy(self):
        _, times = self.device([0.02] * 6)
        assert statistics.median(times.parts["load"][1:]) == pytest.approx(0.01, abs=0.002)

    @pytest.mark.weekly
    def test_batches_in_line_are_read_between_steps(self):
        _, times = self.device([0.02] * 6, in_line=True)
        assert statistics.median(times.parts["load"][1:]) == pytest.approx(0.02, abs=0.002)

    @pytest.mark.weekly
    def test_agreeing_on_the_beginning_is_no_loading(self, monkeypatch: pytest.MonkeyPatch):
        """Ranks that read in line have no step to hide it in."""

        def meet(device: EmulatedDevice, moment_s: float) -> float:
            time.sleep(0.0008)
            return moment_s

        made = EmulatedDevice(step_s=0.01, feed=lambda: time.sleep(0.002) or {}, in_line=True)
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr(EmulatedDevice, "_last_of_ranks", meet)
        loads = []
        for _ in range(5):
            made.start()
            batch = made.next_batch()
            made.mark("load")
            made.step(batch)
            loads += made.stop().parts["load"]
        assert statistics.median(loads) == pytest.approx(0.002, abs=0.0004)

    @pytest.mark.weekly
    def test_a_batch_that_is_held_over_a_pause_counts_its_wait_and_not_the_pause(self):
        made, _ = self.device([0.0, 0.0, 0.02])
        time.sleep(0.05)
        made.start()
        batch = made.next_batch()
        made.mark("load")
        made.feed = lambda: batch
        made.step(batch)
        times = made.stop()
        assert times.parts["load"][0] == pytest.approx(0.01, abs=0.004)


def test_au_as_mlperf_has_it_drops_the_first_step_and_nothing_else():
    block = emulated_block([0.02, 0.02], uncounted_step_s=[5.0, 0.01, 0.01])
    found = utilization_mlperf([RankSamples(0, "ok", blocks=[block])], 0.01)
    assert found == pytest.approx(4 * 0.01 / (0.01 + 0.01 + 0.02 + 0.02))
    assert utilization_mlperf([RankSamples(0, "ok", blocks=[emulated_block([0.01])])], 0.01) is None


@pytest.fixture
def sweep(dataset_root: Path, tmp_path: Path) -> Path:
    """Two emulated accelerators of a known time, and one point that is refused."""
    file = tmp_path / "emulated.yaml"
    file.write_text(
        f"""
base:
  workload: resnet50
  variant: tiny
  data: {{root: {dataset_root}, cache: warm, num_workers: 1}}
  device: emulated:10ms
  parallelism: ddp
  batch_size: 2
  measure: {{steps: 4, warmup_steps: 1, repeats: 2}}
grid:
  world_size: [1, 2]
  precision: [fp32, bf16]
"""
    )
    return file


def test_from_a_sweep_to_the_summary(run_cli: Cli, sweep: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    code, out, err = run_cli("sweep", sweep, "--store", store)
    assert code == 0, err
    assert "precision bf16 with device emulated:10ms: there is no model that it could change" in err
    code, out, err = run_cli("report", "--store", store, "--mlperf-storage", "--format", "json")
    assert code == 0, err
    one, two = json.loads(out)
    assert [found["num_accelerators"] for found in (one, two)] == [1, 2]
    assert one["epochs"] == len(one["metric"]["train_au_percentage"]) == 2
    metric = two["metric"]
    assert 0 < metric["train_au_mean_percentage"] <= 100.1
    assert metric["train_au_meet_expectation"] in ("success", "fail")
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(
        metric["train_throughput_mean_samples_per_second"] * two["benchsuite"]["record_length_bytes"] / 2**20
    )
    assert two["benchsuite"]["computation_time"] == pytest.approx(0.01)
    assert "emulated:10ms is no published time of resnet50" in two["benchsuite"]["deviations"]
    code, out, _ = run_cli("report", "--store", store, "--mlperf-storage")
    assert code == 0 and "90%" in out and "2 ranks" in out
    name = one["benchsuite"]["point_id"]
    record = run_trial(plan_trial({**SPEC(sweep), "device": f"emulated:from-record {name}"}, store).spec)
    assert record.status == "ok" and record.spec["device"] == f"emulated:10ms from-record {name}"
    assert record.figures.ceiling_step_s == pytest.approx(0.01)
    assert (record.figures.mfu, record.figures.peak_memory_bytes, record.figures.tflops_per_device) == (None,) * 3


def SPEC(sweep: Path) -> dict[str, Any]:
    import yaml

    return {**yaml.safe_load(sweep.read_text())["base"], "parallelism": "none"}


def test_the_shipped_sweep_takes_the_published_batches() -> None:
    """Its file and the lines above it: a dataset is all that a plan of it lacks."""
    path = Path(benchsuite.__file__).parent / "sweeps" / "accelerators.yaml"
    asked = [("device=emulated:h100",), ("device=emulated:a100",), ("workload=resnet50", "batch_size=400")]
    for overrides in asked:
        found = load_sweep(path, [*overrides, "world_size=[1,2]"])
        specs = [parse_trial({**found.base, "world_size": ranks}) for ranks in found.grid["world_size"]]
        assert [(spec.ranks, problem(spec)) for spec in specs] == [(1, None), (2, None)]
    wrong = parse_trial({**load_sweep(path, ["batch_size=8"]).base, "world_size": 1})
    assert "batches of 7 of unet3d, batch_size is 8; give 7" in str(problem(wrong))


def test_devices_are_listed(run_cli: Cli) -> None:
    _, out, _ = run_cli("list", "devices")
    assert "emulated:a100, emulated:h100, emulated:b200" in out and "emulated:from-record ID" in out


def test_an_emulated_trial_is_validated_without_a_model(run_cli: Cli, sweep: Path, tmp_path: Path) -> None:
    import yaml

    spec = tmp_path / "trial.yaml"
    spec.write_text(yaml.safe_dump(SPEC(sweep)))
    code, out, _ = run_cli("trial", spec, "--validate")
    assert code == 0 and "not counted: an emulated device has no model" in out
