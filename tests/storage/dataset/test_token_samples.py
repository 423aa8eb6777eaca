"""Generated sequences: BERT's rules of masking, and windows of one stream."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from benchsuite.storage.dataset.sample import Sample, fresh, num_bytes
from benchsuite.storage.dataset.token_samples import (
    CLS,
    END_OF_DOCUMENT,
    FIRST_ID,
    MASK,
    PAD,
    SEP,
    mlm_bytes,
    mlm_sample,
    token_bytes,
    token_dtype,
    token_sample,
)
from benchsuite.workloads.facts import FACTS

MLM = {"seq_len": 128, "max_predictions": 20, "vocab_size": 1000}
WINDOWS = {"seq_len": 600, "vocab_size": 1000}
COUNT = 400
Ids = npt.NDArray[np.int64]


def parts(sample: Sample) -> dict[str, Ids]:
    return {name: np.asarray(value).astype(np.int64) for name, value in sample.fields.items()}


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Ids]]:
    return [parts(mlm_sample(index, fresh, 1, MLM)) for index in range(COUNT)]


def predicted(sample: dict[str, Ids]) -> Ids:
    """Positions to be predicted: those before the padding with zeros."""
    return sample["masked_lm_positions"][: int(np.count_nonzero(sample["masked_lm_ids"]))]


class TestBert:
    def test_dtypes_and_shapes(self) -> None:
        fields = mlm_sample(0, fresh, 1, MLM).fields
        assert {name: (value.dtype.name, value.shape) for name, value in fields.items()} == {
            "input_ids": ("int32", (128,)),
            "segment_ids": ("int8", (128,)),
            "masked_lm_positions": ("int32", (20,)),
            "masked_lm_ids": ("int32", (20,)),
            "next_sentence_label": ("int8", ()),
        }

    def test_two_segments_between_their_marks(self, samples: list[dict[str, Ids]]) -> None:
        for sample in samples:
            ids, segments = sample["input_ids"], sample["segment_ids"]
            length = int(np.flatnonzero(ids).max()) + 1
            seps = np.flatnonzero(ids == SEP)
            assert ids[0] == CLS and np.count_nonzero(ids == CLS) == 1
            assert len(seps) == 2 and seps[1] == length - 1 and 2 <= seps[0] < length - 2
            assert segments.tolist() == [0] * (seps[0] + 1) + [1] * (length - seps[0] - 1) + [0] * (128 - length)
            assert np.all(ids[length:] == PAD)

    def test_positions_are_sorted_inside_and_never_marks(self, samples: list[dict[str, Ids]]) -> None:
        for sample in samples:
            positions, ids = predicted(sample), sample["input_ids"]
            assert np.all(np.diff(positions) > 0)
            assert positions.min() >= 1 and positions.max() < np.flatnonzero(ids).max()
            assert not np.isin(ids[positions], [CLS, SEP, PAD]).any()
            assert np.all(sample["masked_lm_positions"][len(positions) :] == 0)
            assert np.all(sample["masked_lm_ids"][len(positions) :] == 0)
            assert not np.isin(sample["masked_lm_ids"][: len(positions)], [CLS, SEP, MASK, PAD]).any()

    def test_fifteen_percent_are_predicted_at_most_max_predictions(self, samples: list[dict[str, Ids]]) -> None:
        for sample in samples:
            length = int(np.flatnonzero(sample["input_ids"]).max()) + 1
            assert len(predicted(sample)) == min(20, max(1, round(length * 0.15)))
        capped = parts(mlm_sample(0, fresh, 1, {**MLM, "max_predictions": 3}))
        assert len(predicted(capped)) == 3

    def test_of_these_80_percent_are_masked_10_random_10_left(self, samples: list[dict[str, Ids]]) -> None:
        fates = {"masked": 0, "left": 0, "random": 0}
        for sample in samples:
            positions = predicted(sample)
            for shown, target in zip(sample["input_ids"][positions], sample["masked_lm_ids"], strict=False):
                fates["masked" if shown == MASK else "left" if shown == target else "random"] += 1
        total = sum(fates.values())
        assert total > 7000
        assert fates["masked"] / total == pytest.approx(0.8, abs=0.02)
        assert fates["random"] / total == pytest.approx(0.1, abs=0.015)
        assert fates["left"] / total == pytest.approx(0.1, abs=0.015)

    def test_nothing_else_is_masked(self, samples: list[dict[str, Ids]]) -> None:
        for sample in samples:
            masks = np.flatnonzero(sample["input_ids"] == MASK)
            assert set(masks) <= set(predicted(sample))

    def test_ids_are_words_of_the_vocabulary(self, samples: list[dict[str, Ids]]) -> None:
        for sample in samples:
            words = sample["input_ids"][~np.isin(sample["input_ids"], [CLS, SEP, MASK, PAD])]
            assert words.min() >= FIRST_ID and words.max() < MLM["vocab_size"]
            assert sample["masked_lm_ids"].max() < MLM["vocab_size"]

    def test_one_in_ten_is_short_and_half_follow_at_random(self, samples: list[dict[str, Ids]]) -> None:
        short = np.mean([sample["input_ids"][-1] == PAD for sample in samples])
        assert short == pytest.approx(0.1, abs=0.04)
        assert np.mean([sample["next_sentence_label"] for sample in samples]) == pytest.approx(0.5, abs=0.08)

    def test_frequent_words_are_frequent(self, samples: list[dict[str, Ids]]) -> None:
        words = np.concatenate([sample["input_ids"] for sample in samples])
        counts = np.bincount(words[words >= FIRST_ID] - FIRST_ID, minlength=744)
        assert counts[0] > counts[8:12].mean() > counts[80:120].mean() > counts[400:700].mean()

    def test_it_depends_on_seed_and_index_alone(self) -> None:
        def made(seed: int, index: int) -> bytes:
            return mlm_sample(index, fresh, seed, MLM).fields["input_ids"].tobytes()

        assert made(3, 4) == made(3, 4)
        assert len({made(seed, index) for seed in range(3) for index in range(3)}) == 9


class TestWindows:
    def test_each_ends_where_the_next_begins(self) -> None:
        windows = [token_sample(index, fresh, 2, WINDOWS).fields["tokens"] for index in range(30)]
        for first, second in pairwise(windows):
            assert len(first) == WINDOWS["seq_len"] + 1
            assert first[-1] == second[0]

    def test_documents_end_with_zero_and_have_hundreds_of_tokens(self) -> None:
        stream = np.concatenate([token_sample(index, fresh, 2, WINDOWS).fields["tokens"][:-1] for index in range(300)])
        ends = np.flatnonzero(stream == END_OF_DOCUMENT)
        assert END_OF_DOCUMENT == 0
        assert len(stream) / len(ends) == pytest.approx(500, rel=0.15)
        assert stream.max() < WINDOWS["vocab_size"]

    @pytest.mark.parametrize(("vocab_size", "dtype"), [(512, "uint16"), (50432, "uint16"), (65499, "uint16")])
    def test_small_vocabularies_take_two_bytes(self, vocab_size: int, dtype: str) -> None:
        assert token_dtype(vocab_size) == np.dtype(dtype)

    @pytest.mark.parametrize("vocab_size", [65500, 128_000])
    def test_large_ones_take_four(self, vocab_size: int) -> None:
        tokens = token_sample(0, fresh, 2, {"seq_len": 2000, "vocab_size": vocab_size}).fields["tokens"]
        assert tokens.dtype == np.int32
        assert vocab_size > tokens.max() > 20_000

    def test_another_seed_is_another_stream(self) -> None:
        first, second = (token_sample(0, fresh, seed, WINDOWS).fields["tokens"] for seed in (0, 1))
        assert not np.array_equal(first, second)


@pytest.mark.parametrize("variant", ["tiny", "reference"])
def test_bytes_are_told_before_a_sample_is_made(variant: str) -> None:
    for workload, make, told in (("bert", mlm_sample, mlm_bytes), ("gpt_neox", token_sample, token_bytes)):
        params = FACTS[workload].variants[variant].sample
        made = make(0, fresh, 0, params)
        assert told(params) == made.stored_bytes == sum(num_bytes(value) for value in made.fields.values())
