"""DeepSpeed's estimates against the example in its documentation."""

import pytest

from benchsuite.predict.theory import memory as zero
from benchsuite.predict.theory.memory import GIB
from tests.predict.published_tables import all_rows

T5_3B, LARGEST, DEVICES = 2851e6, 32e6, 8
STAGE_3 = [
    # offload parameters, offload optimizer, host GiB, device GiB
    (True, True, 71.69, 0.12),
    (False, True, 63.72, 0.78),
    (False, False, 1.43, 6.09),
]
"""docs/code-docs/source/memory.rst: t5-3b on one node of 8, with zero.Init; the other columns of it are below."""


@pytest.mark.parametrize(("params", "optimizer", "host", "device"), STAGE_3)
def test_stage_3(params: bool, optimizer: bool, host: float, device: float) -> None:
    found = zero.zero3_bytes(T5_3B, LARGEST, DEVICES, optimizer, params)
    assert found / GIB == pytest.approx(device, abs=0.005)
    on_host = zero.zero3_host_bytes(T5_3B, LARGEST, DEVICES, 1, optimizer, params)
    assert on_host / GIB == pytest.approx(host, abs=0.005)


def test_stage_2() -> None:
    assert zero.zero2_bytes(T5_3B, DEVICES, offload_optimizer=True) / GIB == pytest.approx(5.31, abs=0.005)
    assert zero.zero2_bytes(T5_3B, DEVICES, form="documentation") / GIB == pytest.approx(15.93, abs=0.005)
    assert zero.zero2_bytes(T5_3B, DEVICES) == pytest.approx(4.25 * T5_3B)  # 11.28 GiB: the two disagree
    hosts = [zero.zero2_host_bytes(T5_3B, DEVICES, 1, offload) / GIB for offload in (True, False)]
    assert hosts == pytest.approx([127.45, 127.45], abs=0.005)


def test_all_rows() -> None:
    rows = all_rows("deepspeed_estimator")
    for row in rows:
        optimizer, on_host = row["offload_opt"] == "cpu", row["offload_param"] == "cpu"
        printed = row["cpu_GB(GiB)"], row["gpu_GB(GiB)"]
        if row["stage"] == 3:
            test_stage_3(on_host, optimizer, *printed)
        else:
            found = zero.zero2_bytes(row["params"], row["gpus"], optimizer, "documentation")
            assert found / GIB == pytest.approx(printed[1], abs=0.005)
    assert len(rows) == 5


def test_hosts_by_hand() -> None:
    """10 parameters, two nodes of 2: four processes load 40 bytes each; without offloading a node loads for its two."""
    assert zero.zero2_host_bytes(10, 2, 2, offload_optimizer=True) == 1.5 * 10 * 16
    assert zero.zero2_host_bytes(10, 4, 2, offload_optimizer=True) == 1.5 * 10 * 32
    assert zero.zero2_host_bytes(10, 2, 2) == 1.5 * 10 * 8
    assert zero.zero3_host_bytes(10, 3, 2, 2, True, True) == 1.5 * 10 * 18 / 2
    assert zero.zero3_host_bytes(10, 3, 2, 2) == 1.5 * 4 * 3 * 2
    assert zero.zero3_host_bytes(10, 3, 2, 2, sharded_init=False) == 1.5 * 4 * 10 * 2
    assert zero.zero3_host_bytes(10, 3, 2, 2, True, sharded_init=False) == 1.5 * 80


def test_refuses() -> None:
    with pytest.raises(ValueError, match="offload_params without offload_optimizer is not allowed"):
        zero.zero3_bytes(T5_3B, LARGEST, DEVICES, offload_params=True)
    with pytest.raises(ValueError, match="form 'docs' is unknown; allowed: code, documentation"):
        zero.zero2_bytes(T5_3B, DEVICES, form="docs")
