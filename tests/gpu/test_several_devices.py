"""Several devices of one node: every mode trains as one process does, and each rank is on a device of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
import torch

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import plan_trial
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.starters import LocalLauncher
from benchsuite.runner.loss_check import check_loss
from benchsuite.runner.single_trial import run_in_processes
from benchsuite.trial.rank import run_rank
from tests.gpu.accept import SEVERAL_GPUS
from tests.gpu.cases import MODES, PRECISIONS, case_of, features_of_case, spec_of


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    """One agent for all checks: each would else import what its ranks need anew."""
    with LocalLauncher() as found:
        yield found


def devices(number: int) -> int:
    """So many devices, or the test is skipped."""
    if torch.cuda.device_count() < number:
        pytest.skip(f"needs {number} CUDA devices, here is {torch.cuda.device_count()}")
    return number


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODES)
def test_a_mode_trains_as_one_process_does(
    launcher: LocalLauncher, record_property: Callable[[str, object], None], name: str, precision: str
) -> None:
    devices(MODES[name][0])
    spec = case_of(name, precision)
    record_property(SEVERAL_GPUS, features_of_case(spec))
    found = check_loss(plan_trial(spec), launcher)
    assert found["equal"], found


def contexts(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """A trial's rank, which then looks on which devices its own process has a context."""
    result = run_rank(spec, dataset, me, keep)
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    running = [pynvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in handles]
    mine = [number for number, found in enumerate(running) if os.getpid() in [each.pid for each in found]]
    (me.folder / f"devices-{me.rank}").write_text(repr(mine))
    return result


@pytest.mark.parametrize("loader", ["torch", "threads"])
def test_each_rank_has_a_context_on_its_own_device_alone(dataset_root: Path, tmp_path: Path, loader: str) -> None:
    number = devices(2)
    data = {"root": str(dataset_root), "cache": "warm", "num_workers": 2, "loader": loader}
    point = plan_trial(spec_of("resnet50", parallelism="ddp", world_size=number, data=data))
    with LocalLauncher(f"{contexts.__module__}:contexts") as launcher:
        outcome = launcher.run(point.spec, point.dataset, tmp_path, lambda _progress: None)
    assert outcome.is_clean(number)
    found = [(tmp_path / f"devices-{rank}").read_text() for rank in range(number)]
    if "[]" in found:
        pytest.skip("NVML names processes of another namespace here, as in a container")
    assert found == [f"[{rank}]" for rank in range(number)]


def test_exposed_communication_beside_kineto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchsuite.runner.device_check import Examination

    devices(2)
    monkeypatch.chdir(tmp_path)
    (finding,) = Examination(tmp_path).communication()
    assert finding.level == "ok", finding.text


def test_a_checkpoint_of_shards(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    devices(2)
    words = ("--workload", "gpt_neox", "--variant", "tiny", "--world-size", "2", "--repeats", "2")
    code, _, err = run_cli("probe", "checkpoint", tmp_path, *words)
    assert code == 0, err


def test_what_every_record_says_of_its_ranks() -> None:
    number = devices(2)
    record, samples = run_in_processes(plan_trial(spec_of("gpt_neox", parallelism="ddp", world_size=number)))
    assert record.status == "ok" and samples is not None
    uuids = [rank["device_uuid"] for rank in samples["ranks"]]
    assert len(set(uuids)) == number and None not in uuids
    assert len(record.env["rank_cpus"]) == number
    assert record.figures.gradient_copy_s is not None and record.figures.gradient_copy_s > 0
    assert sorted(device["device_uuid"] for device in samples["devices"]) == sorted(uuids)
    if record.env["devices"][0]["nvlinks"]:
        assert record.figures.nvlink_bytes_per_s is not None and record.figures.nvlink_bytes_per_s > 0
