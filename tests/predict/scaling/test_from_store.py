"""Curves from a store's series: steps, parts, limits, modes, buckets, and the probes that tell about them."""

from typing import Any

import numpy as np
import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.exchange import comparable, exchange_of, mode_of
from benchsuite.predict.scaling.from_store import from_series
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.theory.alpha_beta_fit import Key
from benchsuite.predict.theory.alpha_beta_fit import fit as fit_collective
from benchsuite.results.scaling.series import ScalingPoint, Series, find_series
from tests.results.scaled import frame, made_trial


class TestStore:
    def curve(self, *records: Any, **changes: Any) -> Curve:
        (series,) = find_series(frame(*records))
        return from_series(series, "s", changes.get("probed", {}), changes.get("limit"), changes.get("staged", False))

    def trials(self, **figures: Any) -> list[Any]:
        return [made_trial(n, 8 * n / 0.1, figures=figures) for n in (1, 2, 4)]

    def test_steps_come_from_rates_and_parts_from_figures(self):
        told = {
            "step_s_mean": 0.1,
            "load_s": 0.02,
            "communication_s": 0.03,
            "communication_min_s": 0.02,
            "imbalance_mean_s": 0.005,
        }
        curve = self.curve(*self.trials(**told))
        assert not curve.has_input, "synthetic"
        assert (curve.kind, curve.batch, curve.samples(8)) == ("weak", 8, 64)
        point = curve.points[1]
        assert point.step_s == pytest.approx((0.1,))
        assert point.load_s == 0.02
        assert point.parts == pytest.approx({"compute": 0.055, "communication": 0.02, "imbalance": 0.005})
        assert curve.points[0].parts == pytest.approx({"compute": 0.08, "communication": 0.0, "imbalance": 0.0})

    def test_without_parts(self):
        assert all(point.parts is None for point in self.curve(*self.trials()).points[1:])

    def test_a_file_system_that_gave_out(self):
        records = [
            made_trial(n, rate, figures={"io_bytes_per_s": rate * 1e6, "load_s": load, "step_s_mean": 8 * n / rate})
            for n, rate, load in ((1, 80.0, 0.0), (2, 160.0, 0.0), (4, 170.0, 0.09))
        ]
        assert self.curve(*records).shared_bytes_per_s == 170e6
        assert self.curve(*records, staged=True).shared_bytes_per_s is None
        assert self.curve(*records[:2]).shared_bytes_per_s is None
        assert self.curve(*records[:2], limit=1e9).shared_bytes_per_s == 1e9
        assert self.curve(*records, staged=True).staged == "asked"

    @pytest.mark.parametrize(
        ("told", "of_readers"),
        [
            ({"bottleneck": "preprocessing"}, True),
            ({"bottleneck": "storage"}, False),
            ({"bottleneck": "mixed", "cache_hit_fraction": 0.99}, True),
            ({"bottleneck": "mixed", "cache_hit_fraction": 0.01}, False),
        ],
    )
    def test_whose_limit_it_is(self, told: dict[str, Any], of_readers: bool):
        records = [
            made_trial(
                n, rate, figures={"io_bytes_per_s": rate * 1e6, "load_s": load, "step_s_mean": 8 * n / rate} | told
            )
            for n, rate, load in ((1, 80.0, 0.0), (2, 160.0, 0.0), (4, 170.0, 0.09))
        ]
        curve = self.curve(*records)
        assert (curve.readers_bytes_per_s, curve.shared_bytes_per_s) == ((170e6, None) if of_readers else (None, 170e6))
        assert self.curve(*records, staged=True).readers_bytes_per_s == curve.readers_bytes_per_s
        assert self.curve(*records, limit=1e9).shared_bytes_per_s == 1e9

    def test_a_limit_without_bytes_says_that_it_changes_nothing(self):
        (line,) = self.curve(*self.trials(), limit=1e9).notes
        assert line == "the limit of 1 GB/s changes nothing: no bytes of samples were counted"

    @pytest.mark.parametrize("last", [170.0, 300.0])
    def test_a_back_test_knows_nothing_of_the_scales_it_leaves_out(self, last: float):
        """Up to 4 ranks the file system keeps up: whatever 8 ranks get, the prediction is the same."""
        rates = {1: 80.0, 2: 160.0, 4: 320.0, 8: last}
        records = [
            made_trial(
                n,
                rate,
                figures={
                    "io_bytes_per_s": rate * 1e6,
                    "load_s": max(8 * n / rate - 0.1, 0.0),
                    "step_s_mean": 8 * n / rate,
                    "bottleneck": "storage",
                },
                spec={"data": {"source": "storage"}},
            )
            for n, rate in rates.items()
        ]
        curve = self.curve(*records)
        assert curve.shared_bytes_per_s == pytest.approx(last * 1e6, rel=0.05)
        assert curve.upto(4).shared_bytes_per_s is None and curve.upto(4).most_ranks == 4
        ((row,), _) = outlook.back_test(curve)
        assert row["step_s"] == pytest.approx(0.1, rel=0.02)
        assert self.curve(*records, limit=1e8).upto(4).shared_bytes_per_s == 1e8, "a given one is known before"

    @pytest.mark.parametrize(
        ("parallelism", "ranks", "mode"),
        [
            ("fsdp", 4, "fsdp"),
            ({"dp": 4}, 4, "ddp"),
            ({"dp": 4, "tp": 1, "zero": 3}, 4, "fsdp"),
            ({"dp": 4, "zero": 1}, 4, "zero1"),
            ({"dp": 2, "tp": 2}, 4, "mixed"),
            ({"dp": 2, "pp": 2, "microbatches": 4}, 4, "mixed"),
            ({"pp": 4, "microbatches": 4}, 4, "pp"),
            ({"dp": 4, "dp_replicate": 2, "zero": 3}, 4, "mixed"),
            ({"dp": 4, "engine": "horovod"}, 4, "unknown"),
            (None, 4, "unknown"),
        ],
    )
    def test_modes_come_from_degrees(self, parallelism: Any, ranks: int, mode: str):
        trial = frame(made_trial(ranks, 100.0, spec={"parallelism": parallelism})).to_dict(orient="records")[0]
        point = ScalingPoint(ranks, "ok", trials=(trial,))
        assert mode_of(Series("weak", 8, (point,), ranks, trial)) == mode

    def test_mixed_parallelism_has_no_buckets_of_ddp(self):
        told = {"step_s_mean": 0.1, "backward_s": 0.05, "wire_bytes_per_step": 12e6, "communication_min_s": 0.01}
        records = [
            made_trial(n, 40.0 * n, figures=told, spec={"parallelism": {"dp": n // 2, "tp": 2}}) for n in (2, 4, 8)
        ]
        (series,) = [one for one in find_series(frame(*records)) if one.kind == "weak"]
        curve = from_series(series, "s", probed(2, 4), None, False)
        assert (curve.buckets, curve.exchange, curve.pipeline) == ((), None, False)
        assert any("several kinds of parallelism at once: no buckets" in line for line in curve.notes)
        assert curve.notes[0] in outlook.assumptions(fit(curve), [16])

    def test_an_engine_without_a_model_is_named(self):
        spec = {"parallelism": {"dp": None, "zero": 1, "engine": "deepspeed"}}
        (series,) = find_series(frame(*(made_trial(n, 40.0 * n, spec=spec) for n in (2, 4))))
        assert (
            from_series(series, "s", {}, None, False).notes[0].startswith("parallelism dp zero 1 deepspeed: no buckets")
        )

    def test_buckets_of_ddp_come_from_what_is_sent(self):
        """A ring of 4 sends 1.5 times its gradients: 12 MiB in buckets of 4 MiB."""
        sent = {1: 0.0, 2: 12 * 2**20, 4: 18 * 2**20}
        waits = {1: 0.0, 2: 0.01, 4: 0.015}
        told = {"step_s_mean": 0.1, "backward_s": 0.05}
        cap = {"bucket_cap_mb": 4}
        records = [
            made_trial(
                n, 80.0 * n, figures=told | {"wire_bytes_per_step": sent[n], "communication_min_s": waits[n]}, spec=cap
            )
            for n in (1, 2, 4)
        ]
        curve = self.curve(*records)
        assert [size / 2**20 for size in curve.buckets] == [4, 4, 4]
        assert curve.exchange is None and curve.bucket_s is None
        fitted = fit(curve).curve
        assert fitted.exchange is not None
        assert fitted.exchange(np.array([2.0, 4.0])) == pytest.approx([0.01, 0.015], rel=0.1)
        as_probed = self.curve(*records, probed=probed(2, 4))
        assert as_probed.bucket_s is not None
        times = as_probed.bucket_s(np.array(as_probed.buckets))(np.array([2.0]))[0]
        assert times == pytest.approx([1e-4 + size * 1e-9 for size in curve.buckets], rel=0.05)

    @pytest.mark.parametrize(
        ("spec", "sizes"),
        [
            ({}, [4, 4, 4]),
            ({"comm_hook": "bf16"}, [2, 2, 2, 2, 2, 2]),
            ({"comm_hook": "bf16", "precision": "pure_bf16"}, [4, 4, 4]),
            ({"comm_hook": "powersgd"}, []),
        ],
        ids=["as they are", "halved", "halved already", "low rank"],
    )
    def test_a_cap_counts_gradients_and_not_what_a_hook_sends(self, spec: dict[str, Any], sizes: list[float]):
        """12 MiB are sent; of 24 MiB of gradients where a hook halves them."""
        figures = {"wire_bytes_per_step": 12 * 2**20}
        cap = {"bucket_cap_mb": 4} | spec
        curve = self.curve(*(made_trial(n, 80.0 * n, figures=figures, spec=cap) for n in (1, 2)))
        assert [size / 2**20 for size in curve.buckets] == sizes
        assert curve.sent_share == (0.5 if len(sizes) == 6 else 1.0)

    def test_cores_that_are_short_are_told(self):
        waits = {1: 0.01, 2: 0.04, 4: 0.09}
        records = [made_trial(n, 80.0 * n, figures={"cpu_contention_fraction": waits[n]}) for n in waits]
        (line,) = self.curve(*records).notes
        assert line.startswith("cores were short: at 4 ranks 9% of the step was spent waiting for one; ")
        assert self.curve(*records[:2]).notes == (), "4 %"

    def test_tensor_parallel_ranks_share_their_samples(self):
        records = [
            made_trial(n, 64 / step, spec={"parallelism": "tp", "batch_size": None, "global_batch_size": 64})
            for n, step in ((1, 0.4), (2, 0.25), (4, 0.15))
        ]
        curve = self.curve(*records)
        assert (curve.kind, curve.samples(8)) == ("strong", 64)
        assert curve.notes[0].startswith("tp: whether heads and widths of the model divide over so many ranks is not")
        assert curve.points[2].step_s == pytest.approx((0.15,))


def probed(*ranks: int) -> dict[Key, Any]:
    """All-reduces of 0.1 ms (N - 1) and 1 ns a byte, whatever the ranks."""
    sizes = np.array([1e4, 1e5, 1e6, 1e7, 1e8])
    return {
        Key("all_reduce", "backend", "fp32", "gloo", n): fit_collective(sizes, 1e-4 * (n - 1) + 1e-9 * sizes * (n - 1))
        for n in ranks
    }


class TestProbed:
    def series(self, env: dict[str, Any] | None = None, **spec: Any) -> Series:
        trials = [made_trial(n, 80.0 * n, spec=spec, env=env or {}) for n in (1, 2, 4)]
        (found,) = [one for one in find_series(frame(*trials), True) if one.kind == "weak"]
        return found

    def moved(self, **changes: Any) -> dict[Key, Any]:
        return {key._replace(**changes): fitted for key, fitted in probed(2, 4).items()}

    def test_probes_are_of_the_backend_of_the_series(self):
        both = probed(2, 4) | self.moved(backend="nccl")
        for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
            found, notes = comparable(self.series(device=device), both)
            assert {key.backend for key in found} == {backend} and len(found) == 2 and not notes
        assert comparable(self.series(device="cuda"), probed(2, 4)) == ({}, [])

    def test_probes_are_of_as_many_nodes(self):
        both = probed(2, 4) | self.moved(nodes=2)
        assert {key.nodes for key in comparable(self.series(), both)[0]} == {1}
        two = self.series(env={"nodes": [{}, {}]})
        assert {key.nodes for key in comparable(two, both)[0]} == {2}

    def test_probes_of_other_hosts_and_machines_are_left_out_and_told(self):
        mixed = self.moved(host="here") | self.moved(host="there")
        found, notes = comparable(self.series(), mixed)
        assert {key.host for key in found} == {"here"}
        assert notes == ["probes of another host are left out: there"]
        found, notes = comparable(self.series(), self.moved(host="x") | self.moved(host="y"))
        assert not found and notes == ["probes of another host are left out: x, y"]
        found, notes = comparable(self.series(), self.moved(machine="a faster one"))
        assert not found and notes == ["probes of another machine are left out: a faster one"]

    def test_collectives_grow_as_probed(self):
        """Sent by a ring of 4: 1.5 times the array, so 100 MB of gradients in buckets of 25 MiB."""
        found = exchange_of("ddp", {"wire_bytes_per_step": 150e6, "spec.world_size": 4}, probed(2, 4, 8))
        assert found is not None
        one, other = found(np.array([4.0, 16.0]))
        assert one == pytest.approx(3 * (0.1 + 1e-4 * 100e6 / (25 * 2**20)), rel=0.02)
        assert other == pytest.approx(5 * one, rel=0.02), "linear: (16 - 1)/(4 - 1)"

    def test_zero_2_gathers_parameters_and_scatters_gradients(self):
        """As much as an all_reduce by a ring, but as two collectives: here each takes as long as an all_reduce."""
        row = {"wire_bytes_per_step": 150e6, "spec.world_size": 4}
        ops = ("all_gather", "reduce_scatter")
        both = {key._replace(op=op): one for key, one in probed(2, 4).items() for op in ops}
        found, whole = exchange_of("zero2", row, both), exchange_of("ddp", row, probed(2, 4))
        assert found is not None and whole is not None
        assert found(np.array([4.0])) == pytest.approx(2 * whole(np.array([4.0])))
        assert exchange_of("zero2", row, probed(2, 4)) is None, "no all_reduce tells of it"

    @pytest.mark.parametrize(
        ("mode", "row", "ranks"),
        [("pp", {}, (2, 4)), ("ddp", {"wire_bytes_per_step": None}, (2, 4)), ("ddp", {}, (4,)), ("fsdp", {}, (2, 4))],
    )
    def test_nothing_where_the_probes_do_not_tell(self, mode: str, row: dict[str, Any], ranks: tuple[int, ...]):
        figures = {"wire_bytes_per_step": 150e6, "spec.world_size": 4} | row
        assert exchange_of(mode, figures, probed(*ranks)) is None
