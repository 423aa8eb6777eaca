"""What a rank does first: the cores it keeps to, and how long it waits for others."""

import os
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchsuite.contract.rank_samples import RankIdentity, read_result
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.starters import LocalLauncher
from benchsuite.trial import io_observer, rank, setup
from benchsuite.trial.setup import bind, join, limit_waits, patience_s, rendezvous_of
from benchsuite.workloads import facts, resnet50
from benchsuite.workloads.spec import Variant
from tests.helpers.made import made_spec


def me(launched_s: float = 0.0, **more: float) -> RankIdentity:
    return RankIdentity(1, 2, 1, Path("."), launched_s, device_index=1, **more)


class TestBinding:
    @pytest.fixture(autouse=True)
    def two_devices(self, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
        """Two devices, each near one of the cores; what is bound is noted."""
        mine: list[set[int]] = []
        monkeypatch.setattr(setup, "device_ids", lambda: ["GPU-a", "GPU-b"])
        monkeypatch.setattr(setup, "cpus_near", lambda name: {0, 1} if name == "GPU-a" else {1, 90})
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
        monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: mine.append(cpus))
        return mine

    def test_a_rank_keeps_to_cores_near_its_device_that_it_may_use(self, two_devices: list[set[int]]) -> None:
        assert bind(made_spec(device="cuda", cpu_binding="device"), me(cores_per_rank=1.0)) == "1"
        assert two_devices == [{1}]

    @pytest.mark.parametrize("more", [{"cores_per_rank": 2.0}, {}])
    def test_a_rank_is_not_bound_to_less_than_its_share_of_the_cores(
        self, two_devices: list[set[int]], more: dict[str, float]
    ) -> None:
        """One rank of a node with two sockets would lose the cores of one of them."""
        assert bind(made_spec(device="cuda", cpu_binding="device"), me(**more)) is None and two_devices == []

    @pytest.mark.parametrize("changes", [{"device": "cuda", "cpu_binding": "none"}, {"device": "cpu"}])
    def test_others_stay_as_they_are(self, two_devices: list[set[int]], changes: dict[str, str]) -> None:
        assert bind(made_spec(**changes), me(cores_per_rank=1.0)) is None and two_devices == []


@pytest.mark.parametrize(("left_s", "waits_s"), [(900, 450), (180, 90), (150, 60), (120, 30), (80, 30), (40, 20)])
def test_ranks_wait_for_less_than_a_trial_may_take(
    monkeypatch: pytest.MonkeyPatch, left_s: float, waits_s: float
) -> None:
    """At least 90 s less, where there are two minutes: NCCL's watchdog then says who was missing."""
    monkeypatch.setattr(time, "perf_counter", lambda: 20.0)
    assert patience_s(made_spec(measure={"timeout_s": left_s + 20.0}), me(0.0)) == waits_s
    assert patience_s(made_spec(measure={"timeout_s": 10.0}), me(0.0)) == setup.MIN_PATIENCE_S


def test_that_wait_becomes_shorter_as_a_trial_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of steps sets it anew."""
    waits: list[timedelta] = []
    monkeypatch.setattr(rank, "limit_waits", waits.append)
    for now_s in (20.0, 320.0):
        monkeypatch.setattr(time, "perf_counter", lambda now_s=now_s: now_s)
        rank._begin(SimpleNamespace(begin=lambda: dict), made_spec(measure={"timeout_s": 420.0}), me(0.0))  # type: ignore[arg-type]
    assert [each.total_seconds() for each in waits] == [200.0, 30.0]


def late(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """Two ranks that meet in a group of their own, to which the second one does not come."""
    join(rendezvous_of(me, 60.0), me, setup.device_of(spec, me), spec)
    group = dist.new_group([0, 1])
    limit_waits(timedelta(seconds=1))
    if me.rank == 1:
        time.sleep(60)
    dist.barrier(group)
    return RankSamples(me.rank, "ok")


def test_every_group_has_that_limit(tmp_path: Path) -> None:
    """By private names of torch's: were they others, this would wait for half an hour."""
    spec = made_spec(world_size=2, parallelism="ddp", data={"source": "synthetic"}, measure={"timeout_s": 50.0})
    with LocalLauncher(f"{late.__module__}:late") as launcher:
        launcher.run(spec, None, tmp_path, lambda _progress: None)
    result = read_result(tmp_path / "rank-0.json")
    assert result is not None and "Timed out waiting 1000ms" in str(result.reason)
    assert "tests/trial/test_setup.py" in (tmp_path / "rank-1.log").read_text(), "the stack of the rank that was late"


@pytest.mark.parametrize(("profile", "calls"), [("nvtx", ["start", "stop"]), (None, [])])
def test_nsight_captures_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, profile: str | None, calls: list[str]
) -> None:
    """By a stub that records calls; also where measuring fails."""
    seen: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(io_observer.cuda_profiler, name, lambda name=name: seen.append(name))
    spec = made_spec(measure={"profile": profile})
    with suppress(ValueError), io_observer.captured(spec):
        raise ValueError
    assert seen == calls


def test_a_rank_begins_a_large_model_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the weights that it would have begun with in host memory."""
    seen: list[str] = []

    def built(variant: Variant) -> nn.Module:
        seen.append(type(torch.empty(0)).__name__)
        return resnet50.build(variant)

    monkeypatch.setattr(facts, "WHOLE_PARAMETERS", 0)
    spec, alone = made_spec(workload="resnet50", variant="nano"), RankIdentity(0, 1, 0, Path("."), 0.0)
    workload = replace(resnet50.WORKLOAD, build=built)
    found = setup.build(spec, workload, workload.variants["nano"], torch.device("cpu"), alone).gather_state()
    assert seen == ["FakeTensor"]
    torch.manual_seed(spec.measure.seed)
    expected = resnet50.build(workload.variants["nano"]).state_dict()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
