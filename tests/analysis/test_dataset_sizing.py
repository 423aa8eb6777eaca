"""The size of a dataset by MLPerf Storage's rule, against its own program's answers."""

import pytest

from benchsuite.analysis.dataset_sizing import Sizing

GIB = 1 << 30


def test_steps_decide_for_many_accelerators():
    """`benchmark.sh datasize` for 36 H100s and 251 GB on one host: 126000 files of UNet3D, 17203 GB."""
    sizing = Sizing(36, 7, 146_600_628, 251 * GIB)
    assert sizing.samples == sizing.for_steps == 126_000
    assert sizing.samples * sizing.sample_bytes / GIB == pytest.approx(17_203, rel=1e-3)


def test_memory_of_all_hosts_decides_for_few():
    sizing = Sizing(1, 7, 146_600_628, 512 * GIB, hosts=4)
    assert sizing.samples == sizing.for_memory == -(-5 * 4 * 512 * GIB // 146_600_628)
    assert "max(5 x 4 x 549.8 GB of memory / 146.6 MB = 75001, 500 steps x batch 7 x 1 accelerators = 3500)" in str(
        sizing
    )
