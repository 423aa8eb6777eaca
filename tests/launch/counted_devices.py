"""An agent on a node with eight devices that are not there: a made-up NVML in place of the driver, which records calls.

Run as the agent's process; its ranks compute nothing and wait until the devices were read.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples

IDS = tuple(f"GPU-{number}" for number in range(8))
READ = "BENCHSUITE_TEST_READ"
"""Names the file that the made-up NVML writes its calls to, each with the process that called."""


def note(what: str) -> None:
    with Path(os.environ[READ]).open("a") as file:
        file.write(f"{os.getpid()} {what}\n")


def refuse(*_: Any) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def power(handle: str) -> int:
    note(f"power {handle}")
    return 250_000 + 1000 * int(handle[-1])


def stub() -> None:
    """Put made-up functions in the place of NVML's."""
    pynvml.nvmlInit = lambda: note("init")
    pynvml.nvmlShutdown = lambda: None
    pynvml.nvmlDeviceGetCount = lambda: len(IDS)
    pynvml.nvmlDeviceGetHandleByIndex = lambda number: IDS[number]
    pynvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    pynvml.nvmlDeviceGetPowerUsage = power
    pynvml.nvmlDeviceGetClockInfo = lambda handle, which: 1980
    pynvml.nvmlDeviceGetTemperature = refuse
    pynvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=75)


def rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """Wait until the second reading of the last device has begun, with nothing asked of NVML by this process."""
    last, read = f"power {IDS[spec.ranks - 1]}", Path(os.environ[READ])
    while not read.is_file() or read.read_text().count(last) < 2:
        time.sleep(0.02)
    return RankSamples(me.rank, "ok", device_uuid=IDS[me.rank])


if __name__ == "__main__":
    stub()
    from benchsuite.host import device_samples
    from benchsuite.launch import node, zygote

    device_samples.PERIOD_S = 0.01
    node.device_ids = lambda: list(IDS)  # type: ignore[attr-defined]
    zygote.main()
