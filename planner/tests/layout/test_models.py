"""Models as YAML: parameters and FLOPs against what papers print, and what a file of one's own may hold."""

from pathlib import Path

import pytest
import torch

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.workloads import WORKLOADS, load
from benchsuite_plan.layout import models
from benchsuite_plan.layout.models import Model, params, sample_bytes, shape_of, train_flops_per_sample
from benchsuite_plan.layout.runnable import trained
from benchsuite_plan.theory import flops

LADDERS = {
    # Papers print one or two digits; Megatron's table three, and its smallest models in rounded ones.
    "gpt3": 0.018,
    "megatron-1.7b": 0.029,
    "megatron-3.6b": 0.011,
    "megatron": 0.005,
    "t5": 0.028,
}
EXACT = {
    "gpt-neox-20b": 20_554_567_680,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-large": 336_226_108,
    "vit-h": 632_045_800,
    "resnet50": 25_557_032,
    "unet3d": 31_190_243,
    "t5-11b": 11_307_321_344,
}
OF_EACH_KIND = (
    "bert-large",
    "bloom-176b",
    "gpt-neox-20b",
    "gpt2",
    "gpt3-125m",
    "llama2-7b",
    "llama3-8b",
    "megatron-1.7b",
)
"""Models whose parts, or words for them, no other has."""
SIZES = {"layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads"}
"""Keys of models here, and what trials call them."""
TINY = {"name": "tiny", "kind": "decoder", "source": "here", "layers": 2, "hidden": 8, "heads": 2, "seq_len": 4}


def tiny(**changes: object) -> Model:
    return models.parse(TINY | {"vocab": 10} | changes, "here")


class TestShipped:
    @pytest.mark.parametrize("name", models.names())
    def test_parameters_are_what_the_paper_prints(self, name: str):
        model = models.load(name)
        longest = max((key for key in LADDERS if name.startswith(key)), key=len, default="")
        tolerance = LADDERS.get(longest, 0.004)
        assert model.published_params is not None and model.source
        assert params(model) == pytest.approx(model.published_params, rel=tolerance)

    @pytest.mark.parametrize(("name", "count"), EXACT.items())
    def test_exact_counts(self, name: str, count: int):
        assert params(models.load(name)) == count

    @pytest.mark.parametrize("name", ["gpt3-175b", "megatron-1t", "mt-nlg-530b", "gpt-neox-20b", "opt-175b"])
    def test_flops_are_the_closed_form(self, name: str):
        model = models.load(name)
        assert model.layers and model.hidden and model.vocab
        form = flops.transformer_flops(1, 2048, model.layers, model.hidden, model.vocab, recompute="none")
        assert train_flops_per_sample(model) == pytest.approx(float(form), rel=1e-12)

    def test_flops_of_other_kinds(self):
        bert = models.load("bert-large")
        body = 24 * 512 * 24 * 1024**2 * (1 + 512 / (6 * 1024))
        head = 2 * 76 * (1024**2 + 1024 * 30522)
        assert train_flops_per_sample(bert) == pytest.approx(3 * (body + head), rel=1e-12)
        vit = models.load("vit-h")
        assert train_flops_per_sample(vit) == pytest.approx(3 * 334.59e9, rel=1e-4)
        assert train_flops_per_sample(models.load("resnet50")) == pytest.approx(24.299e9)

    def test_llama_flops_are_six_a_parameter_and_token_and_attention(self):
        model = models.load("llama2-7b")
        matrices = params(model) - 32000 * 4096 - 65 * 4096  # neither the embedding nor the norms multiply
        expected = 6 * matrices * 4096 + 12 * 32 * 4096 * 4096**2
        assert train_flops_per_sample(model) == pytest.approx(expected, rel=1e-12)

    def test_samples(self):
        assert sample_bytes(models.load("gpt-neox-20b")) == 4096
        assert sample_bytes(models.load("t5-11b")) == 2 * (512 + 114)
        assert sample_bytes(models.load("unet3d")) == 146600628
        assert sample_bytes(models.load("openfold")) is None


class TestShape:
    def test_a_layer_by_hand(self):
        # 4 matrices of 8 x 8 with biases, MLP 8 x 32 and back with biases, two norms of 16.
        assert shape_of(tiny()).layer_params == 4 * 64 + 32 + 2 * 8 * 32 + 32 + 8 + 2 * 16
        # 4 tokens: 2 a parameter of the 256 + 512, and 4 s^2 h.
        assert shape_of(tiny()).matrix_flops == 2 * 4 * (256 + 512)
        assert shape_of(tiny()).attention_flops == 4 * 4 * 4 * 8
        assert shape_of(tiny()).head_flops == 2 * 4 * 8 * 10

    def test_grouped_heads_and_a_gated_mlp_by_hand(self):
        model = tiny(kv_heads=1, gated_mlp=True, ffn_hidden=12, bias=False, rms_norm=True)
        # q and projection 8 x 8, k and v 8 x 4; three of 8 x 12; two norms of 8.
        assert shape_of(model).layer_params == 2 * 64 + 2 * 32 + 3 * 96 + 16

    @pytest.mark.parametrize("name", ["nano", "tiny"])
    def test_bert_is_what_the_real_model_counts(self, name: str):
        """Its layers, the head on masked tokens, and the next sentence: pooler h^2 and 2 h."""
        from benchsuite.workloads import bert
        from benchsuite.workloads.flops import count

        variant = bert.WORKLOAD.variants[name]
        sizes, sample = variant.model, variant.sample
        shape = {key: sizes[name] for key, name in SIZES.items()} | {"seq_len": sample["seq_len"]}
        head = {"vocab": sample["vocab_size"], "predictions": sample["max_predictions"]}
        found = train_flops_per_sample(tiny(kind="encoder", **shape, **head))
        counted, h = count(bert.WORKLOAD, variant), sizes["hidden_size"]
        assert found is not None
        assert counted.forward_flops == found / 3 + 2 * h * h + 2 * 2 * h
        assert counted.forward_flops + counted.backward_flops == 3 * counted.forward_flops

    def test_neox_has_as_many_parameters_as_the_real_model(self):
        from benchsuite.workloads import gpt_neox
        from benchsuite.workloads.flops import count

        variant = gpt_neox.WORKLOAD.variants["pythia-70m"]
        shape = {key: variant.model[name] for key, name in SIZES.items()}
        model = tiny(tied_embeddings=False, vocab=variant.sample["vocab_size"], **shape)
        assert params(model) == count(gpt_neox.WORKLOAD, variant).parameters

    @pytest.mark.parametrize(
        "name",
        [
            name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.weekly)
            for name in models.names()
            if models.load(name).shaped
        ],
    )
    def test_a_model_that_trials_train_has_as_many_parameters_there(self, name: str):
        found = trained(models.load(name))
        if found.lacking is not None:
            pytest.skip("no trial trains it")
        spec = parse_trial({**found.values, "batch_size": 1})
        workload = load(WORKLOADS, spec.workload)
        with torch.device("meta"):
            built = workload.build(spec.variant_in(workload.variants))
        assert sum(each.numel() for each in built.parameters()) == params(models.load(name))

    def test_parameters_of_published_weights(self):
        base = {"layers": 12, "hidden": 768, "heads": 12, "seq_len": 1024}
        assert params(tiny(learned_positions=True, **base | {"vocab": 50257})) == 124_439_808, "GPT-2 124M"
        assert params(tiny(tied_embeddings=False, **base | {"vocab": 50304})) == 162_322_944, "pythia-160m"
        llama = {"gated_mlp": True, "bias": False, "rms_norm": True, "tied_embeddings": False, "vocab": 128256}
        shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336}
        assert params(tiny(**llama, **shape)) == 8_030_261_248, "LLaMA-3.1 8B"

    def test_tied_or_not(self):
        assert params(tiny(tied_embeddings=False)) - params(tiny()) == 10 * 8
        assert params(tiny(learned_positions=True)) - params(tiny()) == 4 * 8

    def test_an_encoder_decoder_by_hand(self):
        model = tiny(kind="encoder-decoder", decoder_layers=1, decoder_seq_len=3, bias=False)
        of = shape_of(model)
        encoder, decoder = 256 + 512 + 32, 2 * 256 + 512 + 48
        assert of.layer_params == pytest.approx((2 * encoder + decoder) / 3)
        # A decoder's layer: 3 tokens through 768 + q and projection (128), 4 through the cross attention's k and v.
        forward = (2 * 2 * 4 * 768 + 2 * 3 * (768 + 128) + 2 * 4 * 128) / 3
        assert of.matrix_flops == pytest.approx(forward)
        assert of.attention_flops == pytest.approx((2 * 4 * 16 * 8 + 4 * 3 * (3 + 4) * 8) / 3)

    def test_another_length(self):
        longer = models.load("bert-large").with_seq_len(1024)
        assert (longer.seq_len, longer.predictions) == (1024, 152)
        with pytest.raises(UserError, match=r"vit-h.*no sequence length"):
            models.load("vit-h").with_seq_len(512)


class TestOwnFiles:
    def write(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    def test_one_model(self, tmp_path: Path):
        file = self.write(tmp_path, "{kind: decoder, layers: 2, hidden: 8, heads: 2, seq_len: 4, vocab: 10}")
        assert models.load(file) == tiny(name="mine", source=file)

    def test_one_of_several(self, tmp_path: Path):
        file = self.write(
            tmp_path,
            "common: {kind: decoder, hidden: 8, heads: 2, seq_len: 4}\nmodels: {a: {layers: 1}, b: {layers: 2}}",
        )
        assert models.load(f"{file}:b").layers == 2
        with pytest.raises(UserError, match="holds 2 models: a, b; choose one"):
            models.load(file)
        with pytest.raises(UserError, match="'c' is unknown; allowed: a, b"):
            models.load(f"{file}:c")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{kind: decoder, layer: 2}", "unknown key 'layer'.*nearest: layers"),
            ("{kind: decodr}", "decodr.*nearest: decoder"),
            ("{kind: decoder, layers: 2}", "needs hidden, heads, seq_len"),
            ("{kind: conv}", "needs published_params"),
            ("{kind: decoder, layers: 2, hidden: 10, heads: 4, seq_len: 4}", "hidden 10 % heads 4 = 2"),
            ("{kind: decoder, layers: 2, hidden: 8, heads: 4, kv_heads: 3, seq_len: 4}", "no multiple of kv_heads 3"),
            ("{kind: decoder, layers: 0, hidden: 8, heads: 4, seq_len: 4}", "layers 0"),
            ("{kind: encoder-decoder, layers: 2, hidden: 8, heads: 2, seq_len: 4}", "decoder_layers, decoder_seq_len"),
            ("{models: {a: {kind: conv}}, comon: {}}", "comon"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, text: str, words: str):
        with pytest.raises(UserError, match=words) as raised:
            models.load(self.write(tmp_path, text))
        assert "mine.yaml" in str(raised.value) and "\n" not in str(raised.value)

    def test_an_unknown_name(self):
        with pytest.raises(UserError, match=r"'gpt-neox-20' is unknown.*nearest: gpt-neox-20b"):
            models.load("gpt-neox-20")
