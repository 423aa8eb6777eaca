"""A store whose records hold what devices say of themselves, and raw samples of them from launch to end."""

from pathlib import Path
from typing import Any

from benchsuite.results.store.store import ResultsStore
from tests.results.report.reported import ENV, GB, made_figures, made_spec, trial
from tests.results.report.test_trace import made_samples

LAUNCH_S, SECONDS = 4990.0, 20
DEVICE = {
    "energy_j": 5000.0,
    "energy_j_per_sample": 0.625,
    "gpu_busy_fraction": 0.75,
    "power_capped_fraction": 0.12,
    "too_hot_fraction": 0.03,
    "peak_memory_bytes": 40 * GB,
    "reserved_memory_bytes": 52 * GB,
    "device_memory_bytes": 56 * GB,
}


def second_by_second(ranks: int) -> dict[str, Any]:
    """Raw samples of ranks, each on a device of its own, which begins to work ten seconds after launch."""
    samples = made_samples(ranks=ranks)
    del samples["record_id"]
    for rank in samples["ranks"]:
        rank["device_uuid"] = f"GPU-{rank['rank']}"
    works = [second >= 10 for second in range(SECONDS)]
    samples["devices"] = [
        {
            "device_uuid": f"GPU-{number}",
            "at_s": [LAUNCH_S + second for second in range(SECONDS)],
            "power_w": [600.0 + number if on else 100.0 for on in works],
            "sm_mhz": [1980.0 if on else 345.0 for on in works],
            "temperature_c": [None] * SECONDS,
            "busy_fraction": [0.9 if on else 0.0 for on in works],
        }
        for number in range(ranks)
    ]
    return samples


def devices_store(path: Path) -> ResultsStore:
    """One and two devices of 80 GB; and the same on a CPU, which says nothing of energy."""
    store = ResultsStore(path)
    for number, ranks in enumerate((1, 2)):
        spec = made_spec(world_size=ranks, device="cuda")
        figures = made_figures(1000.0 * ranks, **DEVICE, **({"nvlink_bytes_per_s": 8.1e10} if ranks > 1 else {}))
        store.append(trial(number, f"gpus-{ranks}", spec, figures, env=ENV), second_by_second(ranks))
    store.append(trial(2, "cpu", made_spec(device="cpu"), made_figures(10.0), env={**ENV, "devices": []}))
    return store
