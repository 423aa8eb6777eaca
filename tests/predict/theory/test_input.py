"""Input: utilization, knee and bandwidth by hand, against MLPerf Storage's figures, and against simulated ranks."""

from typing import Any

import numpy as np
import pytest

from benchsuite.predict.theory import input
from tests.predict.published_tables import all_rows

UNET3D_BYTES, RESNET50_BYTES, COSMOFLOW_BYTES = 146_600_628, 114_660.07, 2_828_486
CONFIGURATIONS = {
    # batch, seconds a step, bytes a sample, MB/s that an accelerator needs at AU 1
    ("unet3d", "a100"): (7, 0.636, UNET3D_BYTES, 1613.53),
    ("unet3d", "h100"): (7, 0.323, UNET3D_BYTES, 3177.1),
    ("unet3d", "v100"): (4, 1.3604, UNET3D_BYTES, 431.05),
    ("resnet50", "a100"): (400, 0.435, RESNET50_BYTES, 105.43),
    ("resnet50", "h100"): (400, 0.224, RESNET50_BYTES, 204.75),
    ("cosmoflow", "a100"): (1, 0.00551, COSMOFLOW_BYTES, 513.34),
    ("cosmoflow", "h100"): (1, 0.0035, COSMOFLOW_BYTES, 808.14),
}
"""mlcommons/storage, configs/dlio/workload."""
RESULTS = [
    # workload, accelerator, accelerators, AU %, samples/s, MiB/s
    ("cosmoflow", "a100", 15, 72.44, 1969.465, 5312.54),
    ("cosmoflow", "h100", 3, 79.377, 680.012, 1834.3),
    ("cosmoflow", "h100", 18, 73.034, 3745.22, 10102.56),
    ("cosmoflow", "h100", 60, 70.509, 11971.085, 32291.46),
    ("resnet50", "a100", 50, 97.734, 44923.502, 4912.31),
    ("resnet50", "a100", 2100, 91.743, 1764086.728, 192900.0),
    ("resnet50", "h100", 34, 92.175, 55935.28, 6116.43),
    ("resnet50", "h100", 94, 99.249, 166399.853, 18195.55),
    ("unet3d", "a100", 3, 97.963, 31.991, 4472.58),
    ("unet3d", "a100", 40, 93.137, 391.861, 54785.77),
    ("unet3d", "h100", 2, 96.241, 40.866, 5713.48),
    ("unet3d", "h100", 5, 92.722, 99.811, 13954.45),
    ("unet3d", "h100", 15, 91.193, 293.094, 40977.31),
]
"""mlcommons/storage_results_v1.0: means of 5 runs of each system."""


def rate_errors(rows: list[tuple[Any, ...]]) -> dict[str, list[float]]:
    """|predicted / measured - 1| of samples a second, by workload, after checking the bytes a second."""
    found: dict[str, list[float]] = {}
    for workload, accelerator, ranks, au, rate, mib in rows:
        batch, compute_s, record, _ = CONFIGURATIONS[workload, accelerator]
        assert rate * record / 2**20 == pytest.approx(mib, rel=5e-5)
        predicted = input.samples_per_s(num_ranks=ranks, au=au / 100, batch_size=batch, compute_s=compute_s)
        found.setdefault(workload, []).append(abs(float(predicted) / rate - 1))
    return found


class TestMlperfStorage:
    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_required_bandwidth(self, name: tuple[str, str]) -> None:
        batch, compute_s, record, mb_per_s = CONFIGURATIONS[name]
        assert input.required_bytes_per_s(1, compute_s, batch, record) / 1e6 == pytest.approx(mb_per_s, abs=0.006)
        assert input.required_bytes_per_s(10, compute_s, batch, record, 0.9) == pytest.approx(9e6 * mb_per_s, rel=1e-4)

    def test_samples_per_s(self) -> None:
        errors = rate_errors(RESULTS)
        assert np.median(errors["resnet50"]) <= 0.01 and np.median(errors["cosmoflow"]) <= 0.01
        assert np.median(errors["unet3d"]) <= 0.05
        assert max(errors["resnet50"] + errors["cosmoflow"]) <= 0.034

    def test_all_rows(self) -> None:
        for row in all_rows("mlperf_storage_configs"):
            name = row["workload"], row["accelerator"].lower()
            printed = row["derived_req_MB_s_per_acc_at_AU100"]
            found = input.required_bytes_per_s(1, row["computation_time_s"], row["batch"], row["record_bytes"])
            assert found / 1e6 == pytest.approx(printed, abs=0.006)
            if name in CONFIGURATIONS:
                assert CONFIGURATIONS[name] == (
                    row["batch"], row["computation_time_s"], row["record_bytes"], printed,
                )  # fmt: skip
        names = ("workload", "acc", "n_acc", "AU_pct", "samples_per_s", "MiB_per_s")
        errors = rate_errors([tuple(row[name] for name in names) for row in all_rows("mlperf_storage_v1_results")])
        assert {name: len(of) for name, of in errors.items()} == {"cosmoflow": 18, "resnet50": 24, "unet3d": 27}
        assert np.median(errors["resnet50"]) <= 0.004 and np.median(errors["cosmoflow"]) <= 0.004
        assert max(errors["resnet50"] + errors["cosmoflow"]) <= 0.034
        assert np.median(errors["unet3d"]) <= 0.05


class TestUtilization:
    def test_by_hand(self) -> None:
        assert input.au(compute_s=0.2, input_s=0.3, prefetch=False) == pytest.approx(0.4)
        assert input.au(0.2, 0.25) == pytest.approx(0.8)
        assert input.au(0.2, [0.0, 0.1, 0.2, 0.4]).tolist() == [1, 1, 1, 0.5]

    def test_shared_file_system(self) -> None:
        """4 ranks read 80 MB each at 1 GB/s together: 320 ms, unless the client itself is slower."""
        assert input.shared_input_s(4, 8, 10e6, 1e9, 0.1) == pytest.approx(0.32)
        assert input.shared_input_s([1, 4, 8], 8, 10e6, 1e9, 0.4).tolist() == pytest.approx([0.4, 0.4, 0.64])

    def test_slowest_of_two_normals(self) -> None:
        """E[max] of 2 standard normals is 1 / sqrt(pi), of 3 3 / (2 sqrt(pi)), of 100 2.50759 (tables)."""
        found = input.mean_of_slowest(10, 2, [1, 2, 3, 100])
        assert (found - 10) / 2 == pytest.approx([0, np.pi**-0.5, 1.5 * np.pi**-0.5, 2.50759], abs=1e-4)
        assert input.mean_of_slowest(0, 1, 10**6) == pytest.approx(4.86290, abs=1e-4)

    @pytest.mark.parametrize(("compute_s", "input_s", "jitter_s", "ranks"), [(1, 0.8, 0.1, 8), (1, 1.2, 0.3, 64)])
    def test_jitter_against_simulated_ranks(
        self, compute_s: float, input_s: float, jitter_s: float, ranks: int
    ) -> None:
        """Steps of 100,000 meetings: the slowest rank's input sets the pace, though the mean is hidden."""
        drawn = np.random.default_rng(7).normal(input_s, jitter_s, (100_000, ranks)).max(1)
        hidden = compute_s / np.maximum(compute_s, drawn).mean()
        assert input.au(compute_s, input_s, True, ranks, jitter_s) == pytest.approx(hidden, rel=1e-3)
        exposed = compute_s / (compute_s + drawn.mean())
        assert input.au(compute_s, input_s, False, ranks, jitter_s) == pytest.approx(exposed, rel=1e-3)

    def test_jitter_costs_more_with_more_ranks(self) -> None:
        found = input.au(1, 0.9, num_ranks=[1, 8, 64, 512], jitter_s=0.1)
        assert np.all(np.diff(found) < 0) and found[0] > 0.95 and found[-1] < 0.9
        assert input.au(1, 0.9, num_ranks=[1, 8], jitter_s=[[0], [0.1]])[0].tolist() == [1, 1]


class TestKnee:
    def test_by_hand(self) -> None:
        """10 GB/s, and UNet3D on H100 wants 3.1771: the fourth accelerator is starved."""
        found = input.knee(shared_bytes_per_s=10e9, compute_s=0.323, batch_size=7, record_bytes=UNET3D_BYTES)
        assert found == pytest.approx(10 / 3.1771, rel=1e-4)
        assert input.knee(10e9, 0.323, 7, UNET3D_BYTES, au_target=0.9) == pytest.approx(found / 0.9)

    def test_is_where_utilization_leaves_1(self) -> None:
        knee = float(input.knee(10e9, 0.323, 7, UNET3D_BYTES))
        ranks = np.arange(1, 9)
        found = input.au(0.323, input.shared_input_s(ranks, 7, UNET3D_BYTES, 10e9))
        assert found == pytest.approx(np.minimum(1, knee / ranks))

    def test_staging(self) -> None:
        """100 s of copying, 30 s an epoch instead of 50: the fifth epoch pays it back."""
        assert input.staging_break_even_epochs(100, 50, 30) == 5
        assert input.staging_break_even_epochs(100, [50, 30], 30).tolist() == [5, np.inf]

    @pytest.mark.parametrize(
        ("call", "line"),
        [
            (lambda: input.au(0, 1), "compute_s 0 is not allowed; allowed: a finite number above 0"),
            (lambda: input.au(1, -1), "input_s -1 is not allowed; allowed: a finite number, 0 or above"),
            (lambda: input.au(1, 1, num_ranks=0.5), r"num_ranks 0\.5 is not allowed"),
            (lambda: input.au(1, 1, jitter_s=-1), "deviation_s -1 is not allowed"),
            (lambda: input.knee(0, 1, 1, 1), "shared_bytes_per_s 0 is not allowed"),
            (lambda: input.knee(1, 1, 1, 1, 1.5), r"au_target 1\.5 is not allowed; allowed: a number from 0 to 1"),
            (lambda: input.knee(1, 1, 1, 1, 0), "au_target 0 is not allowed"),
            (lambda: input.samples_per_s(0, 1, 1, 1), "num_ranks 0 is not allowed"),
        ],
    )
    def test_refuses(self, call: Any, line: str) -> None:
        with pytest.raises(ValueError, match=line):
            call()


def test_the_slowest_of_some():
    """Means of the largest of 1, 2, 8 and 100 standard normals (Harter 1961), in the order of the ranks."""
    found = input.of_slowest(np.array([8.0, 1.0, 2.0, 100.0, 8.0]))
    assert found == pytest.approx([1.42360, 0, 0.56419, 2.50759, 1.42360], abs=2e-3)
