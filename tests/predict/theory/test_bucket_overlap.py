"""Overlap of gradient exchange: buckets as PyTorch makes them, and timelines by hand."""

import numpy as np
import pytest

from benchsuite.predict.theory import bucket_overlap

MIB = 2**20


class TestBuckets:
    def test_by_hand(self) -> None:
        """Backward order 3, 2, 40, 10, 20, 1 MiB: first bucket from 1 MiB on, then from 25 on, and the rest."""
        found = bucket_overlap.bucket_bytes([MIB, 20 * MIB, 10 * MIB, 40 * MIB, 2 * MIB, 3 * MIB])
        assert [size / MIB for size in found] == [3, 42, 30, 1]

    def test_caps_are_pytorch_s_own(self) -> None:
        import torch.distributed as dist

        assert dist._DEFAULT_FIRST_BUCKET_BYTES == bucket_overlap.FIRST_BUCKET_BYTES == MIB
        assert bucket_overlap.bucket_bytes([1, 25 * MIB, 25 * MIB - 1, MIB]) == [MIB, 50 * MIB - 1, 1]
        assert bucket_overlap.bucket_bytes([1, 25 * MIB, 2, MIB - 1]) == [MIB + 1, 25 * MIB, 1]

    def test_a_cap_that_is_given_holds_for_the_first_bucket_too(self) -> None:
        assert bucket_overlap.bucket_bytes([4, 4, 4, 4], bucket_cap_bytes=8) == [8, 8]
        assert bucket_overlap.bucket_bytes([MIB] * 12, bucket_cap_bytes=4 * MIB) == [4 * MIB] * 3
        assert bucket_overlap.bucket_bytes([MIB] * 50, bucket_cap_bytes=25 * MIB) == [25 * MIB] * 2
        assert bucket_overlap.bucket_bytes([]) == []

    @pytest.mark.parametrize("cap", [None, 0.25, 1, 4, 25])
    def test_is_what_pytorch_assigns(self, cap: float | None) -> None:
        """DistributedDataParallel gives the reducer the small first limit where bucket_cap_mb is None alone."""
        import torch
        import torch.distributed as dist

        sizes = np.random.default_rng(3).integers(1, 3_000_000, 60).tolist()
        tensors = [torch.empty(size, device="meta") for size in reversed(sizes)]
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MIB] if cap is None else [int(cap * MIB)]
        buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
        theirs = [sum(4 * tensors[place].numel() for place in bucket) for bucket in buckets]
        assert bucket_overlap.bucket_bytes([4 * size for size in sizes], None if cap is None else cap * MIB) == theirs


class TestTimeline:
    def test_by_hand(self) -> None:
        """Ready at 1, 2 and 9 s: 3 s each follow one another to 7 s; the last begins when it is ready."""
        ready, exchange = [1.0, 2.0, 9.0], [3.0, 3.0, 2.0]
        assert bucket_overlap.last_end_s(ready, exchange) == 11
        assert bucket_overlap.exposed_s(9, ready, exchange) == 2
        assert bucket_overlap.exposed_s(9, ready, exchange, overlap=False) == 8
        assert bucket_overlap.step_s(4, 9, 0.5, ready, exchange) == 4 + 11 + 0.5
        assert bucket_overlap.step_s(4, 9, 0.5, ready, exchange, overlap=False) == 4 + 9 + 8 + 0.5

    def test_slow_links_expose_all_but_the_wait_for_the_first(self) -> None:
        assert bucket_overlap.exposed_s(10, [1, 2, 10], [20, 20, 20]) == 61 - 10

    def test_slowdown_is_paid_where_all_is_hidden(self) -> None:
        """Backward of 10 s takes 12; the last bucket is full then."""
        assert bucket_overlap.exposed_s(10, [5, 10], [1, 1], slowdown=1.2) == pytest.approx(3)
        assert bucket_overlap.exposed_s(10, [5, 6], [1, 1], slowdown=1.2) == pytest.approx(2)

    def test_lies_between_its_bounds(self) -> None:
        generator = np.random.default_rng(5)
        exchange = generator.uniform(0, 0.3, (200, 8))
        ready = bucket_overlap.ready_s(generator.uniform(1, 9, (200, 8)), np.ones(200))
        found = bucket_overlap.step_s(0.5, 1, 0.1, ready, exchange)
        assert found.shape == (200,)
        assert np.all(found <= bucket_overlap.step_s(0.5, 1, 0.1, ready, exchange, overlap=False))
        assert np.all(found >= 0.6 + np.maximum(1, exchange.sum(-1)))

    def test_buckets_fill_as_backward_goes(self) -> None:
        assert bucket_overlap.ready_s([1, 1, 2], 8).tolist() == [2, 4, 8]
        assert bucket_overlap.ready_s([1, 3], [4, 8]).tolist() == [[1, 4], [2, 8]]

    def test_smaller_buckets_hide_more_until_latency_counts(self) -> None:
        """100 MB over 10 GB/s and 0.5 ms a message: one bucket hides nothing, a thousand pay for messages."""
        exposed = {}
        for number in (1, 10, 1000):
            sizes = np.full(number, 100e6 / number)
            ready = bucket_overlap.ready_s(sizes, 0.02)
            exposed[number] = float(bucket_overlap.exposed_s(0.02, ready, 5e-4 + sizes / 10e9))
        assert exposed[1] == pytest.approx(0.0105)
        assert exposed[10] == pytest.approx(0.0015) and exposed[1000] > 0.4

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match="communication_s -1 is not allowed; allowed: a finite number, 0 or above"):
            bucket_overlap.exposed_s(1, [1], [-1])
        with pytest.raises(ValueError, match="slowdown 0 is not allowed"):
            bucket_overlap.exposed_s(1, [1], [1], slowdown=0)
        with pytest.raises(ValueError, match="bucket_cap_bytes 0 is not allowed"):
            bucket_overlap.bucket_bytes([1], 0)
