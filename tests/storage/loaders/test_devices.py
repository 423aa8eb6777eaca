"""Which CUDA device a loader touches: its rank's or none, whatever devices there are. By stubs that record calls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.storage import KINDS, LOADERS, load, missing_loaders
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import dali_pipeline
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.trial.setup import device_of

RANKS = range(4)
DEVICES = {"cuda": RANKS, "cpu": (None,) * 4, "emulated:20ms": (None,) * 4}


@dataclass
class Calls:
    """What was asked of CUDA: the devices that were touched, and how events were made."""

    devices: list[int | None] = field(default_factory=list)
    blocking: list[bool] = field(default_factory=list)
    waited: int = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A machine with CUDA, as far as loaders can see."""
    seen = Calls()

    class Event:
        def __init__(self, blocking: bool = False) -> None:
            seen.blocking.append(blocking)

        def record(self, stream: int) -> None:
            seen.devices.append(stream)

        def synchronize(self) -> None:
            seen.waited += 1

        def query(self) -> bool:
            return True

    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: len(RANKS),
        "current_stream": lambda device: device,
        "set_device": seen.devices.append,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return seen


Made = Callable[[int, str], Any]


@pytest.fixture
def made(dataset_root: Path, request: pytest.FixtureRequest) -> Iterator[Made]:
    built: list[Any] = []

    def make(rank: int, device: str) -> Any:
        spec = DataSpec(num_workers=1, prefetch_factor=2, pin_memory=False)
        trial = {"workload": "resnet50", "batch_size": 4, "device": device, "parallelism": "ddp", "world_size": 4}
        me = RankIdentity(rank, 4, rank, dataset_root, 0.0)
        index = device_of(TrialSpec.model_validate(trial), me).index
        dataset, kind = open_dataset(dataset_root / "files"), load(KINDS, "image")
        reading = LoaderInput(dataset, spec, kind, {"image_size": 32}, 4, rank, 4, 0, cuda_device=index)
        built.append(load(LOADERS, request.param)(reading))
        return built[-1]

    yield make
    for loader in built:
        loader.close()


@pytest.mark.parametrize("made", ["threads"], indirect=True)
@pytest.mark.parametrize("device", DEVICES)
def test_a_loader_touches_its_ranks_device_or_none(calls: Calls, made: Made, device: str) -> None:
    for rank, expected in zip(RANKS, DEVICES[device], strict=True):
        calls.devices.clear()
        loader = made(rank, device)
        for _ in range(8):
            next(loader)
            loader.copies.queued()
        assert {*calls.devices} == ({expected} if expected is not None else set())
    assert all(calls.blocking), "waiting for an event must not take a core"
    assert bool(calls.waited) == (device == "cuda")


@pytest.mark.skipif("dali" in missing_loaders(), reason="nvidia.dali is not installed")
@pytest.mark.parametrize("made", ["dali"], indirect=True)
@pytest.mark.parametrize("device", DEVICES)
def test_dali_decodes_on_its_ranks_device_or_none(
    calls: Calls, made: Made, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    class Refused(Exception):
        pass

    def pipeline(batch: int, threads: int, device_id: int | None, **_: Any) -> None:
        asked.append(device_id)
        raise Refused

    monkeypatch.setattr(dali_pipeline, "dali", lambda module: SimpleNamespace(Pipeline=pipeline, __version__="2.4"))
    for rank in RANKS:
        with pytest.raises(Refused):
            made(rank, device)
    assert asked == list(DEVICES[device])
