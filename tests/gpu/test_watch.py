"""A watched loop on the device: parts on its timeline, without waiting for it."""

import time
from collections.abc import Iterator

import torch

import benchsuite
from benchsuite.inside.timestamps import CudaStamps


def batches(number: int, load_s: float) -> Iterator[torch.Tensor]:
    for _ in range(number):
        time.sleep(load_s)
        yield torch.zeros(8, 4)


def test_waiting_for_input_is_seen_where_the_device_waits() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in range(5):
        matrix @ matrix
    torch.cuda.synchronize()
    shares = {}
    for load_s, products in ((0.02, 1), (0.0, 40)):
        watch = benchsuite.watch(batches(30, load_s), quiet=True)
        for _ in watch:
            for _ in range(products):
                matrix @ matrix
            watch.mark("forward")
        watch.close()
        assert isinstance(watch._ending.loop.stamps, CudaStamps)
        found = watch.figures
        parts = [found[name] for name in ("load_s", "forward_s", "other_s")]
        assert abs(sum(parts) - found["step_s_mean"]) < 1e-9
        assert found["peak_memory_bytes"] > 1e7 and found["overhead_fraction"] < 0.5
        assert watch.record is not None and watch.record.spec["device"] == torch.cuda.get_device_name()
        shares[load_s] = found["input_stall_fraction"]
    assert shares[0.02] > 0.5 > 0.05 > shares[0.0]


def test_the_loop_runs_ahead_of_the_device() -> None:
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    watch = benchsuite.watch(batches(40, 0.0), quiet=True)
    began_s = time.perf_counter()
    for _ in watch:
        matrix @ matrix
    queued_s = time.perf_counter() - began_s
    torch.cuda.synchronize()
    assert queued_s < 0.5 * (time.perf_counter() - began_s)
    watch.close()
    assert watch.figures["steps"] == 35
