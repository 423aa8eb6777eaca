"""What parallel training sends, by hand and as papers state it."""

import pytest

from benchsuite.predict.theory import volumes
from benchsuite.probe.comm.step_tables import table

P, D = 1_000_000, 8


class TestDataParallel:
    def test_zero_communicates_twice_or_three_times_the_model(self) -> None:
        """ZeRO, section 7: 2 P for data parallelism and stages 1 and 2, 3 P for stage 3; here (d - 1)/d of it."""
        found = [volumes.data_parallel_bytes(P, D, stage) / (2 * P * 7 / 8) for stage in range(4)]
        assert found == [2, 2, 2, 3]

    def test_is_what_rings_send(self) -> None:
        ring = table("all_reduce", "ring", D).sent_elements(2 * P)[0]
        gather = table("all_gather", "ring", D).sent_elements(2 * P)[0]
        scatter = table("reduce_scatter", "ring", D).sent_elements(2 * P)[0]
        assert volumes.data_parallel_bytes(P, D) == ring
        assert volumes.data_parallel_bytes(P, D, 3) == pytest.approx(2 * gather + scatter)

    def test_microbatches(self) -> None:
        """4 of them: DDP once; stage 2 reduces each; stage 3 gathers twice and reduces for each."""
        assert [volumes.data_parallel_passes(stage, 4) for stage in range(4)] == [2, 2, 5, 12]
        assert [volumes.data_parallel_passes(stage, 4, sync_every_microbatch=True) for stage in (0, 1)] == [8, 5]
        assert volumes.data_parallel_passes(3, 4, sync_every_microbatch=False) == 9
        assert volumes.data_parallel_passes(3, 4, reshard_after_forward=False) == 8
        assert volumes.data_parallel_passes(3, 4, gathers_for_recompute=True) == 16

    def test_one_rank_sends_nothing(self) -> None:
        assert volumes.data_parallel_bytes(P, [1, 2, 4], 3, bytes_per_element=4).tolist() == [0, 6e6, 9e6]

    def test_hybrid(self) -> None:
        """Shards of 4, 2 replicas: 3/4 of 3 P inside; the gradients of a quarter between."""
        inside, between = volumes.hybrid_shard_bytes(P, 4, 2)
        assert (inside, between) == (3 * P * 0.75 * 2, P / 4 * 2)
        whole, none = volumes.hybrid_shard_bytes(P, D, 1)
        assert (whole, none) == (volumes.data_parallel_bytes(P, D, 3), 0)

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match="stage 4 is unknown; allowed: 0, 1, 2, 3"):
            volumes.data_parallel_bytes(P, D, 4)
        with pytest.raises(ValueError, match="data_parallel 0 is not allowed"):
            volumes.data_parallel_bytes(P, 0)


class TestModelParallel:
    def test_tensor_parallel_layer(self) -> None:
        """4 all_reduces of b s h, 8 b s h (t - 1)/t elements; 6 where forward is done again."""
        b, s, h, t = 2, 128, 64, 4
        one = table("all_reduce", "ring", t).sent_elements(b * s * h * 2)[0]
        assert volumes.tensor_parallel_layer_bytes(b, s, h, t) == 4 * one == 8 * b * s * h * 0.75 * 2
        assert volumes.tensor_parallel_layer_bytes(b, s, h, t, "full") == 6 * one
        assert volumes.tensor_parallel_layer_bytes(b, s, h, [1, t], "selective").tolist() == [0, 4 * one]
        with pytest.raises(ValueError, match="recompute 'half' is unknown; allowed: none, selective, full"):
            volumes.tensor_parallel_layer_bytes(b, s, h, t, "half")

    def test_sequence_parallelism_sends_the_same(self) -> None:
        size = 2 * 128 * 64 * 2
        parts = [table(op, "ring", 4).sent_elements(size)[0] for op in ("reduce_scatter", "all_gather")]
        assert volumes.tensor_parallel_layer_bytes(2, 128, 64, 4) == 4 * sum(parts)

    def test_pipeline(self) -> None:
        """4 stages, 8 microbatches: 3 boundaries both ways; with 2 chunks 7; an eighth each where 8 ranks share."""
        one = 2 * 128 * 64 * 2
        assert volumes.pipeline_bytes(2, 128, 64, 4, 8) == 2 * 8 * 3 * one
        assert volumes.pipeline_bytes(2, 128, 64, 4, 8, 2) == 2 * 8 * 7 * one
        assert volumes.pipeline_bytes(2, 128, 64, 4, 8, 2, 8, scatter_gather=True) == 2 * 7 * one
        assert volumes.pipeline_bytes(2, 128, 64, [1, 2], 8, [[1], [4]]).tolist() == [[0, 16 * one], [0, 16 * 7 * one]]

    def test_experts(self) -> None:
        """4 exchanges of two copies of every token with a quarter more room; half of them stay with 2 ranks."""
        found = volumes.expert_parallel_layer_bytes(2, 128, 64, [1, 2, 8], top_k=2, capacity_factor=1.25)
        assert found.tolist() == [4 * 2.5 * 2 * 128 * 64 * 2 * share for share in (0, 0.5, 0.875)]


class TestParameterServer:
    def test_resnet_50_on_256_workers(self) -> None:
        """97.5 MiB of gradients three times a second: 73.1 GiB/s into one server, an eighth into each of eight."""
        found = volumes.parameter_server_bytes_per_s(256, 97.5 * 2**20, 3, [1, 8])
        assert found / 2**30 == pytest.approx([73.125, 73.125 / 8])
        assert volumes.parameter_server_bytes_per_s(256, 97.5e6, 3) == 74.88e9

    def test_is_what_the_server_sends_in_a_step(self) -> None:
        """One of 9 ranks serves the 8 others."""
        sent = table("all_reduce", "parameter_server", 9).sent_elements(4_000_000)
        assert sent[0] == volumes.parameter_server_bytes_per_s(8, 4e6, 1) and set(sent[1:]) == {4e6}
