"""Random numbers, the registry's kinds, and sequences: widened, never reshaped."""

import random

import numpy as np
import pytest
import torch

from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.kinds import MLM, TOKENS, decode_one, empty_batch, sample_rng
from benchsuite.storage.dataset.manifest import DatasetError, Sample
from tests.storage.samples import MLM_PARAMS, PARAMS, TOKEN_PARAMS, some_samples

RNG = random.Random(0)


class TestRandomNumbers:
    def test_depend_on_seed_epoch_and_key(self) -> None:
        drawn = [
            tuple(sample_rng(seed, epoch, key).random() for _ in range(2))
            for seed in (0, 1)
            for epoch in (0, 1)
            for key in ("a", "b")
        ]
        assert len(set(drawn)) == 8
        assert all(first == second for first, second in drawn)

    def test_do_not_run_together(self) -> None:
        assert sample_rng(1, 11, "a").random() != sample_rng(11, 1, "a").random()
        assert sample_rng(1, 1, "1:a").random() != sample_rng(1, 11, "a").random()


class TestEveryKind:
    @pytest.mark.parametrize("name", KINDS)
    def test_fills_tensors_as_it_says(self, name: str) -> None:
        kind = load(KINDS, name)
        decoded = decode_one(kind, some_samples(1, name)[0], PARAMS[name], RNG)
        said = kind.tensors(PARAMS[name])
        assert kind.name == name
        assert {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in decoded.items()} == said

    @pytest.mark.parametrize("name", KINDS)
    def test_fills_every_element_of_its_row_and_no_other_row(self, name: str) -> None:
        kind, sample = load(KINDS, name), some_samples(1, name)[0]
        batches = [empty_batch(kind, PARAMS[name], 3) for _ in range(2)]
        for batch, before in zip(batches, (77, 99), strict=True):
            for tensor in batch.values():
                tensor.fill_(before)
            kind.decode(sample, PARAMS[name], random.Random(4), {key: tensor[1] for key, tensor in batch.items()})
        for key, tensor in batches[0].items():
            assert torch.equal(tensor[1], batches[1][key][1])
            assert torch.all(tensor[0] == 77) and torch.all(tensor[2] == 77)
            assert torch.all(batches[1][key][0] == 99)

    @pytest.mark.parametrize("name", KINDS)
    def test_an_empty_batch_is_what_a_batch_of_samples_needs(self, name: str) -> None:
        kind = load(KINDS, name)
        for key, tensor in empty_batch(kind, PARAMS[name], 5).items():
            dtype, shape = kind.tensors(PARAMS[name])[key]
            assert (tensor.dtype, tuple(tensor.shape)) == (dtype, (5, *shape))
            assert tensor.is_contiguous()

    @pytest.mark.parametrize("name", ["volume", "mlm", "tokens"])
    def test_a_sample_of_another_kind_is_named(self, name: str) -> None:
        sample = Sample("the/key", {"image": b"jpeg", "label": b"0"}, source="/the/file")
        with pytest.raises(DatasetError, match=r"/the/file: sample 'the/key': no array"):
            decode_one(load(KINDS, name), sample, PARAMS[name], RNG)

    def test_an_array_where_an_image_belongs_is_named(self) -> None:
        volume = some_samples(1, "volume")[0]
        sample = Sample("the/key", volume.fields, source="/the/file")
        with pytest.raises(DatasetError, match=r"/the/file: sample 'the/key': no encoded 'image'"):
            decode_one(load(KINDS, "image"), sample, PARAMS["image"], RNG)


class TestSequences:
    def test_bert_samples_are_widened(self) -> None:
        for sample in some_samples(20, "mlm"):
            decoded = decode_one(MLM, sample, MLM_PARAMS, RNG)
            assert list(decoded) == list(sample.fields)
            for name, values in sample.fields.items():
                assert decoded[name].dtype == torch.int64
                assert decoded[name].tolist() == values.tolist()

    def test_windows_are_widened(self) -> None:
        for sample in some_samples(20, "tokens"):
            decoded = decode_one(TOKENS, sample, TOKEN_PARAMS, RNG)
            assert decoded["tokens"].dtype == torch.int64
            assert decoded["tokens"].tolist() == sample.fields["tokens"].tolist()

    def test_ids_beyond_the_signed_range_stay_positive(self) -> None:
        sample = Sample("k", {"tokens": np.array([65535, 40000, 1], np.uint16)})
        assert decode_one(TOKENS, sample, {"seq_len": 2}, RNG)["tokens"].tolist() == [65535, 40000, 1]

    @pytest.mark.parametrize("seq_len", [TOKEN_PARAMS["seq_len"] - 1, TOKEN_PARAMS["seq_len"] + 1, 0])
    def test_windows_of_another_length_are_refused(self, seq_len: int) -> None:
        with pytest.raises(DatasetError, match=rf"tokens has shape \(25,\), needed: \({seq_len + 1},\)"):
            decode_one(TOKENS, some_samples(1, "tokens")[0], {"seq_len": seq_len}, RNG)

    @pytest.mark.parametrize("changed", [{"seq_len": 31}, {"max_predictions": 6}])
    def test_bert_samples_of_another_length_are_refused(self, changed: dict[str, int]) -> None:
        with pytest.raises(DatasetError, match=r"has shape .*, needed: "):
            decode_one(MLM, some_samples(1, "mlm")[0], {**MLM_PARAMS, **changed}, RNG)

    @pytest.mark.parametrize(
        ("values", "needed"),
        [
            (np.array([3, 60000, 1], np.uint16), "tokens holds 60000, needed: 0..599 (vocab_size 600)"),
            (np.array([3, 600, 1], np.int32), "tokens holds 600, needed: 0..599 (vocab_size 600)"),
            (np.array([3, -5536, 1], np.int16), "tokens holds -5536, needed: 0..599 (vocab_size 600)"),
        ],
    )
    def test_ids_that_are_no_words_are_named(self, values: np.ndarray, needed: str) -> None:
        sample = Sample("the/key", {"tokens": values}, source="/the/file")
        with pytest.raises(DatasetError) as raised:
            decode_one(TOKENS, sample, {"seq_len": 2, "vocab_size": 600}, RNG)
        assert str(raised.value) == f"/the/file: sample 'the/key': {needed}"

    def test_the_first_and_the_last_word_are_words(self) -> None:
        sample = Sample("k", {"tokens": np.array([0, 599, 0], np.int16)})
        assert decode_one(TOKENS, sample, {"seq_len": 2, "vocab_size": 600}, RNG)["tokens"].tolist() == [0, 599, 0]

    @pytest.mark.parametrize(
        ("name", "value", "needed"),
        [
            ("input_ids", 600, "0..599 (vocab_size 600)"),
            ("masked_lm_ids", -1, "0..599 (vocab_size 600)"),
            ("masked_lm_positions", 32, "0..31 (seq_len 32)"),
            ("segment_ids", 2, "0..1"),
            ("next_sentence_label", 2, "0..1"),
        ],
    )
    def test_bert_fields_that_no_table_has_a_row_for_are_named(self, name: str, value: int, needed: str) -> None:
        whole = some_samples(1, "mlm")[0]
        values = np.array(whole.fields[name])
        values.reshape(-1)[-1] = value
        sample = Sample("the/key", {**whole.fields, name: values}, source="/the/file")
        with pytest.raises(DatasetError) as raised:
            decode_one(MLM, sample, MLM_PARAMS, RNG)
        assert str(raised.value) == f"/the/file: sample 'the/key': {name} holds {value}, needed: {needed}"

    def test_a_scalar_is_not_broadcast(self) -> None:
        sample = Sample("k", {"tokens": np.array(7, np.uint16)})
        with pytest.raises(DatasetError, match="has shape"):
            decode_one(TOKENS, sample, {"seq_len": 4}, RNG)
