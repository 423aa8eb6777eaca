"""alpha-beta fits: made series with a known truth, and published ones that one line does not fit."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.theory.alpha_beta_fit import MAX_BEYOND, Key, fit, from_rows, in_words
from benchsuite.results.store.frames import record_frame
from tests.helpers.published_tables import all_rows
from tests.results.made import made_record

POWERS = 2.0 ** np.arange(10, 27)
LUT_A100_4 = {
    1048576: 51.4,
    2097152: 55.74,
    3145728: 64.94,
    4194304: 77.32,
    6291456: 104.1,
    8388608: 116.8,
    12582912: 139.2,
    16777216: 179.6,
    25165824: 220.2,
    33554432: 284.2,
    50331648: 396.4,
    67108864: 543.8,
    100663296: 762.7,
    134217728: 998.6,
    268435456: 1929.0,
    536870912: 3720.0,
    1073741824: 7259.4,
}
"""us of nccl-tests' all_reduce by bytes: 4 A100s with NVLink (VIA-Research/vTrain, data/, git f8dda84)."""
LUT_V100_4 = {
    1048576: 67.26,
    2097152: 95.26,
    3145728: 121.6,
    4194304: 142.1,
    6291456: 146.3,
    8388608: 177.8,
    16777216: 324.2,
    33554432: 618.4,
    67108864: 1202.1,
    134217728: 2364.8,
    268435456: 4714.0,
    1073741824: 18869.0,
}
"""The same of 4 V100s."""
FOUR_NODES = {32: 0.48, 128: 1.58, 512: 4.73, 2048: 12.28, 8192: 35.42}
"""algbw in GB/s by KiB: all_reduce over 4 nodes of 8 (stas00/ml-engineering, network/benchmarks)."""


def line(alpha_s: float, beta: float, sizes: np.ndarray = POWERS) -> np.ndarray:
    return alpha_s + beta * sizes


class TestMadeSeries:
    def test_one_line_is_found_as_it_is(self) -> None:
        found = fit(POWERS, line(30e-6, 2e-10))
        (piece,) = found.pieces
        assert (piece.alpha_s, piece.beta_s_per_byte) == (pytest.approx(30e-6), pytest.approx(2e-10))
        assert piece.alpha_interval_s[0] <= 30e-6 <= piece.alpha_interval_s[1]
        assert (piece.from_bytes, found.max_bytes, piece.num_points) == (1024, 2**26, 17)
        assert found.time_s(3e6) == pytest.approx(30e-6 + 6e-4)

    def test_scalars_and_arrays_of_any_shape(self) -> None:
        found = fit(POWERS, line(1e-5, 1e-9))
        assert np.ndim(found.time_s(4096)) == 0
        asked = np.array([[1e4, 1e5], [1e6, 1e7]])
        assert found.time_s(asked).shape == (2, 2)

    def test_a_floor_under_small_sizes(self) -> None:
        """t = max(a0, a + S b), as small messages have."""
        true = np.maximum(40e-6, 5e-6 + 1e-9 * POWERS)
        found = fit(POWERS, true)
        assert len(found.pieces) == 2
        floor, rest = found.pieces
        assert floor.alpha_s == pytest.approx(40e-6) and floor.beta_s_per_byte == pytest.approx(0, abs=1e-14)
        assert (rest.alpha_s, rest.beta_s_per_byte) == (pytest.approx(5e-6), pytest.approx(1e-9))
        assert found.time_s(POWERS) == pytest.approx(true)

    def test_a_protocol_switch_with_noise(self) -> None:
        rng = np.random.default_rng(4)
        true = np.where(POWERS < 1e5, line(10e-6, 1e-9), line(80e-6, 1 / 8e9))
        found = fit(POWERS, true * (1 + 0.02 * rng.standard_normal(len(POWERS))))
        assert len(found.pieces) == 2
        assert found.pieces[0].to_bytes == 65536 and found.pieces[1].from_bytes == 131072
        assert found.time_s(POWERS) == pytest.approx(true, rel=0.05)
        assert found.relative_error == pytest.approx(0.02, rel=0.5)

    def test_few_pieces_where_there_is_only_noise(self) -> None:
        rng = np.random.default_rng(0)
        made = [len(fit(POWERS, line(30e-6, 2e-10) * (1 + 0.1 * rng.standard_normal(17))).pieces) for _ in range(100)]
        assert sum(number == 1 for number in made) >= 90

    @pytest.mark.parametrize(
        ("noise", "draws"),
        [(0.02, 60), (0.1, 60), *(pytest.param(noise, 200, marks=pytest.mark.full) for noise in (0.02, 0.1))],
    )
    def test_intervals_cover_what_they_say(self, noise: float, draws: int) -> None:
        """95 % of alphas and betas; over 200 series within about 3 points, over 60 within 5."""
        rng = np.random.default_rng(1)
        alphas, betas = [], []
        true = line(30e-6, 2e-10)
        for _ in range(draws):
            found = fit(POWERS, true * (1 + noise * rng.standard_normal(17)))
            first, last = found.pieces[0], found.pieces[-1]
            alphas.append(first.alpha_interval_s[0] <= 30e-6 <= first.alpha_interval_s[1])
            betas.append(last.beta_interval_s_per_byte[0] <= 2e-10 <= last.beta_interval_s_per_byte[1])
        assert 0.90 <= np.mean(alphas) <= 0.99 and 0.88 <= np.mean(betas) <= 0.99

    def test_latency_alone_and_rate_alone(self) -> None:
        """Parts that would come out negative are zero, with an interval that says how large they may be."""
        flat = fit(POWERS, np.full(17, 5e-5)).pieces[0]
        assert (flat.alpha_s, flat.beta_s_per_byte) == (pytest.approx(5e-5), pytest.approx(0, abs=1e-15))
        falling = fit(POWERS, 5e-5 - 1e-14 * POWERS).pieces[0]
        assert falling.beta_s_per_byte == 0 and falling.beta_interval_s_per_byte[1] > 0
        steep = fit(POWERS, 1e-9 * POWERS).pieces[0]
        assert steep.alpha_s == pytest.approx(0, abs=1e-12) and steep.beta_s_per_byte == pytest.approx(1e-9)

    def test_sizes_may_come_several_times_and_in_any_order(self) -> None:
        sizes = np.tile(POWERS[::-1], 3)
        found = fit(sizes, line(30e-6, 2e-10, sizes))
        assert found.pieces[0].num_points == 51 and found.time_s(1e6) == pytest.approx(2.3e-4)


class TestBeyondWhatWasMeasured:
    found = fit(POWERS, line(30e-6, 2e-10))

    def test_too_far_is_refused(self) -> None:
        assert self.found.time_s(MAX_BEYOND * 2**26) > 0
        with pytest.raises(UserError, match=r"num_bytes 2147483648 is 32 times the largest size measured; allowed"):
            self.found.time_s(2**31)


class TestPublished:
    @pytest.mark.parametrize(("table", "most"), [(LUT_A100_4, 0.06), (LUT_V100_4, 0.03)])
    def test_nccl_needs_more_than_one_line(self, table: dict[int, float], most: float) -> None:
        """LL, LL128 and Simple: one line is 10 % off where the pieces are a few."""
        sizes, seconds = np.array([*table]), np.array([*table.values()]) * 1e-6
        found, single = fit(sizes, seconds), fit(sizes, seconds, max_pieces=1)
        assert len(found.pieces) >= 2
        assert np.abs(found.time_s(sizes) / seconds - 1).max() < most
        assert np.abs(single.time_s(sizes) / seconds - 1).max() > 0.09

    def test_the_largest_sizes_left_out_are_foretold(self) -> None:
        for table in (LUT_A100_4, LUT_V100_4):
            sizes, seconds = np.array([*table]), np.array([*table.values()]) * 1e-6
            known = sizes <= 1 << 26
            found = fit(sizes[known], seconds[known])
            assert found.time_s(sizes[~known]) == pytest.approx(seconds[~known], rel=0.04)

    def test_one_line_over_predicts_the_smallest_of_four_nodes(self) -> None:
        sizes = np.array([kib * 1024.0 for kib in FOUR_NODES])
        seconds = sizes / (np.array([*FOUR_NODES.values()]) * 1e9)
        single = fit(sizes, seconds, max_pieces=1)
        assert (single.time_s(sizes) / seconds - 1).max() > 0.05

    def test_all_rows_of_nccl(self) -> None:
        rows = pd.DataFrame(all_rows("nccl_allreduce_lut"))
        for (gpu, ranks), group in rows.groupby(["gpu", "ranks"]):
            sizes, seconds = group["bytes"].to_numpy(), group["out_of_place_us"].to_numpy() * 1e-6
            assert np.abs(fit(sizes, seconds).time_s(sizes) / seconds - 1).max() < 0.07, (gpu, ranks)

    def test_all_rows_of_four_nodes(self) -> None:
        rows = pd.DataFrame(all_rows("allreduce_4node"))
        sizes = rows["payload_KiB"].to_numpy() * 1024.0
        seconds = sizes / (rows["algbw_GB_s"].to_numpy() * 1e9)
        pieces, single = fit(sizes, seconds), fit(sizes, seconds, max_pieces=1)
        assert np.abs(pieces.time_s(sizes) / seconds - 1).max() < 0.14
        assert single.time_s(sizes[0]) / seconds[0] - 1 > 0.25, "one line over-predicts the smallest"


class TestRows:
    def frame(self, **changes: Any) -> pd.DataFrame:
        made = {
            "status": "ok",
            "spec.op": "all_reduce",
            "spec.algorithm": "backend",
            "spec.dtype": "fp32",
            "spec.backend": "gloo",
            "spec.world_size": 4,
            "spec.nodes": 1,
            "spec.num_bytes": [1024, 4096, 16384, 65536],
            "comm_s": 1e-4 + 1e-9 * np.array([1024, 4096, 16384, 65536]),
        }
        return pd.DataFrame({**made, **changes})

    def test_one_fit_for_each_combination(self) -> None:
        more = [self.frame(**{"spec.nodes": 2, "comm_s": [1.0, 1.0, 1.0, 1.0]}), self.frame(**{"spec.world_size": 2})]
        found = from_rows(pd.concat([self.frame(), *more]))
        key = Key("all_reduce", "backend", "fp32", "gloo", 4)
        assert set(found) == {key, key._replace(nodes=2), key._replace(ranks=2)}
        assert found[key].pieces[0].alpha_s == pytest.approx(1e-4)
        assert found[key._replace(nodes=2)].time_s(2048) == pytest.approx(1.0)

    def test_hosts_and_machines_are_fitted_apart(self) -> None:
        slow = self.frame(**{"env.host": "b", "env.cpu": "old", "comm_s": [1.0, 1.0, 1.0, 1.0]})
        found = from_rows(pd.concat([self.frame(**{"env.host": "a"}), slow], ignore_index=True))
        assert {(key.host, key.machine) for key in found} == {("a", ""), ("b", "old")}
        by_host = {key.host: fitted for key, fitted in found.items()}
        assert by_host["a"].time_s(2048) == pytest.approx(1e-4 + 2048e-9, rel=0.01)
        assert by_host["b"].time_s(2048) == pytest.approx(1.0)

    def test_devices_of_records_tell_machines_apart(self) -> None:
        """As a store gives them: a list of devices, all of one kind or not."""
        envs = [{"cpu": "c", "devices": [{"name": name}] * 2, "libraries": {}} for name in ("H100", "A100")]
        records = [
            made_record(number, kind="comm", env=env, spec=self.spec(size), figures={"comm_s": 1e-4 + 1e-9 * size})
            for number, (env, size) in enumerate(product(envs, (1024, 4096, 16384)))
        ]
        found = from_rows(record_frame(records, "comm"))
        assert {key.machine for key in found} == {"c, A100", "c, H100"}

    def spec(self, size: int) -> dict[str, Any]:
        given = {"op": "all_reduce", "algorithm": "backend", "dtype": "fp32", "backend": "nccl"}
        return given | {"world_size": 2, "nodes": 1, "num_bytes": size}

    def test_what_has_no_time_is_left_out(self) -> None:
        lost = self.frame(status=["ok", "ok", "ok", "skipped"], comm_s=[1e-4, 1e-4, 1e-4, None])
        (found,) = from_rows(lost).values()
        assert found.max_bytes == 16384
        few = self.frame(status=["ok", "ok", "failed", "skipped"])
        assert from_rows(few) == {}
        assert from_rows(pd.DataFrame()) == {} and from_rows(self.frame().drop(columns="comm_s")) == {}

    def test_steps_of_training_are_no_collectives(self) -> None:
        assert from_rows(self.frame(**{"spec.op": "ddp_step"})) == {}

    def test_in_words(self) -> None:
        (found,) = from_rows(self.frame()).values()
        (words,) = in_words(found)
        assert words.startswith("1024 to 65536 B: alpha 100.0 us [9") and ", beta 1 ns/B [0." in words


@pytest.mark.parametrize(
    ("sizes", "seconds", "more", "words"),
    [
        ([1, 2, 2], [1, 2, 3], {}, "2 different sizes: a fit needs at least 3"),
        ([1, 2, 3], [1, 2], {}, "3 sizes and 2 times: allowed: as many of one as of the other"),
        ([1, 2, 3], [1, 2, 0], {}, "allowed: sizes from 0, times above 0"),
        ([1, 2, np.nan], [1, 2, 3], {}, "not a number"),
        ([1, 2, 3], [1, 2, 3], {"max_pieces": 4}, "max_pieces 4: allowed: 1 to 3"),
    ],
)
def test_mistakes(sizes: list[float], seconds: list[float], more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        fit(sizes, seconds, **more)


def test_no_size_below_zero() -> None:
    found = fit(POWERS, line(1e-5, 1e-9))
    assert found.time_s(0) == pytest.approx(1e-5)
    with pytest.raises(UserError, match="num_bytes -1: allowed: from 0 on"):
        found.time_s([-1, 5])
