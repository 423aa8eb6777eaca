"""Figures of computation: FLOPs over time and peak, tokens, memory and messages."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from benchsuite.analysis.metrics import figures
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.workloads.flops import Flops
from tests.helpers.made import made_block, made_result, made_spec


class TestComputation:
    STEP: ClassVar[dict[str, float]] = {"load": 0.0, "h2d": 0.0, "forward": 0.1, "backward": 0.2, "optimizer": 0.1}
    FLOPS = Flops(10, 100 * 10**9, 200 * 10**9, 100 * 10**9)

    def found(self, spec: TrialSpec, **changes: Any) -> dict[str, Any]:
        ranks = [
            made_result(rank, [made_block("plain", 0.0, self.STEP)], final_loss=1.0, **changes)
            for rank in range(spec.ranks)
        ]
        return figures(spec, ranks, flops=self.FLOPS)

    def spec(self, **changes: Any) -> TrialSpec:
        return made_spec(data={"source": "synthetic", "num_workers": 0, "prefetch_factor": 1}, **changes)

    def test_flops_over_time_and_peak(self):
        found = self.found(self.spec(precision="bf16"), device_name="NVIDIA H200")
        assert found["samples_per_s"] == pytest.approx(10)
        assert found["tflops_per_device"] == pytest.approx(3)
        assert found["peak_tflops_per_device"] == pytest.approx(989.4)
        assert found["mfu"] == found["hfu"] == pytest.approx(3 / 989.4)

    def test_recomputation_counts_for_the_hardware_alone(self):
        found = self.found(self.spec(precision="bf16", activation_checkpointing="full"), device_name="NVIDIA H200")
        assert found["hfu"] == pytest.approx(4 / 3 * found["mfu"])

    def test_what_lies_behind_a_causal_mask_counts_for_one_of_two_mfus(self, monkeypatch: pytest.MonkeyPatch):
        spec = self.spec(precision="bf16")
        assert self.found(spec, device_name="NVIDIA H200")["mfu_causal"] is None
        monkeypatch.setattr(TestComputation, "FLOPS", replace(self.FLOPS, masked_flops=30 * 10**9))
        found = self.found(spec, device_name="NVIDIA H200")
        assert found["mfu_causal"] == pytest.approx(0.9 * found["mfu"]) == pytest.approx(2.7 / 989.4)

    def test_without_a_known_peak_there_is_no_share_of_it(self):
        found = self.found(self.spec())
        assert (found["mfu"], found["hfu"], found["peak_tflops_per_device"]) == (None, None, None)
        assert found["tflops_per_device"] == pytest.approx(3)

    def test_ranks_of_a_tensor_parallel_group_share_their_samples(self):
        one = self.found(self.spec())
        two = self.found(self.spec(workload="gpt_neox", parallelism={"tp": 2}, world_size=2))
        assert two["samples_per_s"] == pytest.approx(one["samples_per_s"])
        assert two["tflops_per_device"] == pytest.approx(one["tflops_per_device"] / 2)
        replicas = self.found(self.spec(parallelism="ddp", world_size=2))
        assert replicas["samples_per_s"] == pytest.approx(2 * one["samples_per_s"])

    def test_tokens_where_samples_have_them(self):
        assert self.found(self.spec(), tokens_per_sample=128)["tokens_per_s"] == pytest.approx(1280)
        assert self.found(self.spec())["tokens_per_s"] is None

    def test_the_largest_rank_counts(self):
        parts = {
            "weights_bytes": 4,
            "gradients_bytes": 3,
            "optimizer_bytes": 2,
            "activations_bytes": 1,
            "wire_bytes": 9.0,
        }
        found = self.found(self.spec(), account={**parts, "collectives": {}})
        assert [found[name] for name in list(parts)[:4]] == [4, 3, 2, 1]
        assert found["wire_bytes_per_step"] == 9
