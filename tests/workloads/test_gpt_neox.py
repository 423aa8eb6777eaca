"""The decoders against transformers' implementation, and against the published counts."""

import math
import random
from collections.abc import Callable
from fnmatch import fnmatch
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from benchsuite.storage.dataset.kinds import TOKENS, decode_one
from benchsuite.storage.dataset.sample import fresh
from benchsuite.storage.dataset.token_samples import token_sample
from benchsuite.workloads import WorkloadError
from benchsuite.workloads.decoder import NORM_EPS, Layer, rotary_table, rotate
from benchsuite.workloads.facts import DecoderShape
from benchsuite.workloads.facts import gpt_neox_shape as shape
from benchsuite.workloads.gpt_neox import WORKLOAD
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch
from tests.workloads import transformers_names

CPU = torch.device("cpu")
NANO, TINY, REFERENCE = (WORKLOAD.variants[name] for name in ("nano", "tiny", "reference"))
SMALL = {name: WORKLOAD.variants[name] for name in ("nano", "nano_moe", "nano_gpt2", "nano_llama", "tiny")}
WIDE = shape(320, 1, 4, vocab_size=96, seq_len=24)
"""A head of 80 dimensions, as in pythia-2.8b."""


def built(variant: Variant, spread: float = 0.1) -> tuple[nn.Module, Batch]:
    """A model whose biases and norms are not trivial, and a batch."""
    torch.manual_seed(0)
    model = WORKLOAD.build(variant)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=spread)
    return model, WORKLOAD.synthetic(variant, 3, CPU)


def apart(one: Tensor, other: Tensor) -> float:
    """Relative distance of two tensors."""
    one, other = one.detach(), other.detach()
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


class TestCounts:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("pythia-70m", 70_426_624),
            ("pythia-160m", 162_322_944),
            ("pythia-410m", 405_334_016),
            ("pythia-1b", 1_011_781_632),
            ("pythia-1.4b", 1_414_647_808),
            ("pythia-2.8b", 2_775_208_960),
            ("pythia-6.9b", 6_857_302_016),
            ("pythia-12b", 11_846_072_320),
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
            ("llama2-7b", 6_738_415_616),
            ("llama2-13b", 13_015_864_320),
            ("llama2-70b", 68_976_648_192),
            ("llama3-8b", 8_030_261_248),
            ("llama3-70b", 70_553_706_496),
            ("llama3-405b", 405_853_388_800),
            ("reference", 20_554_567_680),
        ],
    )
    def test_parameters_are_as_many_as_published(self, name: str, expected: int) -> None:
        with torch.device("meta"):
            model = WORKLOAD.build(WORKLOAD.variants[name])
        assert sum(parameter.numel() for parameter in model.parameters()) == expected

    def test_experts_are_layers_of_the_dense_model_times_their_number(self) -> None:
        with torch.device("meta"):
            dense, mixed = (WORKLOAD.build(WORKLOAD.variants[name]) for name in ("pythia-160m", "moe"))
        mlp = sum(parameter.numel() for parameter in dense.layers[0].mlp.parameters())
        extra = 12 * (7 * mlp + 8 * 768)
        counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (dense, mixed)]
        assert counts[1] - counts[0] == extra

    def test_every_variant_builds_on_the_meta_device(self) -> None:
        for variant in WORKLOAD.variants.values():
            with torch.device("meta"):
                model = WORKLOAD.build(variant)
            assert len(WORKLOAD.blocks(model)) == variant.model["num_layers"]
            assert all(value.is_meta for value in model.state_dict().values())


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    found: ModuleType = pytest.importorskip("transformers", reason="not installed: pip install transformers")
    return found


def theirs(transformers: ModuleType, variant: Variant, attention: str) -> nn.Module:
    config = transformers.GPTNeoXConfig(
        vocab_size=variant.sample["vocab_size"],
        hidden_size=variant.model["hidden_size"],
        num_hidden_layers=variant.model["num_layers"],
        num_attention_heads=variant.model["num_heads"],
        intermediate_size=4 * variant.model["hidden_size"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25},
        attn_implementation=attention,
    )
    model: nn.Module = transformers.GPTNeoXForCausalLM(config)
    return model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", [NANO, TINY, WIDE], ids=["nano", "tiny", "wide"])
def test_is_the_model_of_transformers(transformers: ModuleType, variant: Variant, attention: str) -> None:
    """Logits, loss and gradients."""
    ours, batch = built(variant)
    twin = theirs(transformers, variant, attention)
    twin.load_state_dict(transformers_names.to_theirs(ours.state_dict(), transformers_names.GPT_NEOX), strict=True)
    output = twin(batch["tokens"], labels=batch["tokens"])
    assert apart(ours(batch["tokens"]), output.logits) < 2e-6
    loss = WORKLOAD.loss(ours, batch)
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    loss.backward()
    output.loss.backward()
    given = {name: value.grad for name, value in twin.named_parameters()}
    expected = transformers_names.to_ours(given, transformers_names.GPT_NEOX)
    found = {name: value.grad for name, value in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert apart(gradient, expected[name]) < 1e-5, name


def twin_of(transformers: ModuleType, variant: Variant, attention: str) -> tuple[nn.Module, Callable[..., Any]]:
    """A GPT-2 or LLaMA of transformers, and what makes our state, or our gradients, its own."""
    of = DecoderShape.of(variant)
    if of.learned_positions:
        sizes = {"n_embd": of.hidden_size, "n_layer": of.num_layers, "n_head": of.num_heads, "n_inner": of.inner}
        dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config = transformers.GPT2Config(
            vocab_size=of.vocab_size, n_positions=of.seq_len, **sizes, **dropped, attn_implementation=attention
        )
        return transformers.GPT2LMHeadModel(config), lambda state: transformers_names.as_gpt2(state, of.head_dim)
    config = transformers.LlamaConfig(
        vocab_size=of.vocab_size,
        hidden_size=of.hidden_size,
        num_hidden_layers=of.num_layers,
        num_attention_heads=of.num_heads,
        num_key_value_heads=of.kv_heads,
        intermediate_size=of.inner,
        max_position_embeddings=of.seq_len,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": of.rope_theta},
        attn_implementation=attention,
    )
    queries = of.num_heads // of.kv_heads
    return transformers.LlamaForCausalLM(config), lambda state: transformers_names.as_llama(state, queries, of.head_dim)


OTHERS = {
    "gpt2": WORKLOAD.variants["nano_gpt2"],
    "gpt2 of other sizes": WORKLOAD.variants["gpt2"].resized(
        {"hidden_size": 60, "num_layers": 2, "num_heads": 4, "ffn_size": 100, "vocab_size": 211, "seq_len": 24}
    ),
    "llama": WORKLOAD.variants["nano_llama"],
    "llama3 of other sizes": WORKLOAD.variants["llama3-8b"].resized(
        {"hidden_size": 96, "num_layers": 2, "num_heads": 6, "num_kv_heads": 2, "ffn_size": 260}
        | {"vocab_size": 300, "seq_len": 40}
    ),
    "llama without groups": WORKLOAD.variants["nano_llama"].resized({"num_kv_heads": 0}),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", OTHERS)
def test_is_the_gpt2_or_llama_of_transformers(transformers: ModuleType, name: str, attention: str) -> None:
    """Logits, loss and gradients."""
    ours, batch = built(OTHERS[name])
    twin, translated = twin_of(transformers, OTHERS[name], attention)
    missing, unexpected = twin.load_state_dict(translated(ours.state_dict()), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if "gpt2" in name else [], [])
    output = twin(batch["tokens"][:, :-1])
    assert apart(ours(batch["tokens"][:, :-1]), output.logits) < 2e-6
    loss = WORKLOAD.loss(ours, batch)
    expected = cross_entropy(output.logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    expected.backward()
    found = translated({name: value.grad for name, value in ours.named_parameters()})
    given = {name: value.grad for name, value in twin.named_parameters()}
    assert found.keys() == given.keys()
    for key, gradient in found.items():
        assert apart(gradient, given[key]) < 1e-5, key


class TestModel:
    @pytest.mark.parametrize("name", SMALL)
    def test_later_tokens_do_not_change_earlier_logits(self, name: str) -> None:
        model, batch = built(SMALL[name])
        tokens = batch["tokens"][:, :-1]
        changed = tokens.clone()
        changed[:, 9:] = (changed[:, 9:] + 1) % SMALL[name].sample["vocab_size"]
        with torch.no_grad():
            before, after = model(tokens), model(changed)
        assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
        assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)

    def test_rotation_keeps_lengths_and_depends_on_distance_alone(self) -> None:
        table = rotary_table(torch.arange(32), 8)
        query, key = torch.randn(24).expand(32, 24), torch.randn(24).expand(32, 24)
        turned = rotate(query, table)
        assert torch.allclose(turned.norm(dim=-1), query.norm(dim=-1))
        assert torch.equal(turned[0], query[0]) and torch.equal(turned[:, 8:], query[:, 8:])
        scores = turned @ rotate(key, table).T
        assert torch.allclose(scores[5:, 5:], scores[:-5, :-5], atol=1e-5)
        assert scores[0].std() > 0.01

    @pytest.mark.parametrize("name", SMALL)
    def test_every_parameter_takes_part(self, name: str) -> None:
        model, batch = built(SMALL[name])
        WORKLOAD.loss(model, batch).backward()
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name

    @pytest.mark.parametrize("name", SMALL)
    def test_pieces_in_sequence_are_the_model(self, name: str) -> None:
        model, batch = built(SMALL[name])
        assert WORKLOAD.pipeline is not None
        pieces = WORKLOAD.pipeline.stages(model)
        held = [parameter for module, _ in pieces for parameter in module.parameters()]
        assert [id(parameter) for parameter in held] == [id(parameter) for parameter in model.parameters()]
        x = None
        for module, call in pieces:
            x = call(module, x, batch)
        assert torch.equal(WORKLOAD.pipeline.criterion(x, batch), WORKLOAD.loss(model, batch))

    def test_needs_no_values_on_the_host(self) -> None:
        with FakeTensorMode():
            WORKLOAD.loss(WORKLOAD.build(NANO), WORKLOAD.synthetic(NANO, 2, CPU)).backward()

    def test_compiles_as_one_graph(self) -> None:
        model, batch = built(NANO)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert WORKLOAD.loss(compiled, batch).item() == pytest.approx(WORKLOAD.loss(model, batch).item(), rel=1e-6)

    @pytest.mark.parametrize("name", SMALL)
    def test_layers_can_be_checkpointed(self, name: str) -> None:
        model, batch = built(SMALL[name])
        WORKLOAD.loss(model, batch).backward()
        expected = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        for block in WORKLOAD.blocks(model):
            block.forward = lambda x, table, block=block: checkpoint(
                Layer.forward, block, x, table, use_reentrant=False
            )
        WORKLOAD.loss(model, batch).backward()
        assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))

    @pytest.mark.parametrize("name", SMALL)
    def test_bfloat16_stays_near(self, name: str) -> None:
        model, batch = built(SMALL[name])
        exact = WORKLOAD.loss(model, batch).item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert WORKLOAD.loss(model, batch).item() == pytest.approx(exact, rel=0.01)
        assert WORKLOAD.loss(model.to(torch.bfloat16), batch).item() == pytest.approx(exact, rel=0.02)

    def test_shapes_that_cannot_be_rotated_are_refused(self) -> None:
        with pytest.raises(WorkloadError, match="hidden_size 100 is not a multiple of num_heads 8"):
            shape(100, 2, 8, vocab_size=64, seq_len=8)
        with pytest.raises(
            WorkloadError, match=r"96 / num_heads 8 = 12, of which 0.25 is turned by position: 3 dimensions"
        ):
            shape(96, 2, 8, vocab_size=64, seq_len=8)


class TestTraining:
    def test_loss_is_the_mean_cross_entropy_of_next_tokens(self) -> None:
        model, batch = built(NANO)
        with torch.no_grad():
            probability = model(batch["tokens"]).double().softmax(-1)
            likelihoods = [
                math.log(probability[row, position, batch["tokens"][row, position + 1]])
                for row in range(3)
                for position in range(16)
            ]
            assert WORKLOAD.loss(model, batch).item() == pytest.approx(-sum(likelihoods) / 48, rel=1e-6)

    def test_initial_weights_have_the_spread_of_the_reference(self) -> None:
        torch.manual_seed(0)
        model = WORKLOAD.build(TINY)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                assert (parameter == float("norm" in name and name.endswith("weight"))).all(), name
            else:
                wang = name.endswith(("out.weight", "down.weight"))
                expected = 2 / 4 / math.sqrt(128) if wang else math.sqrt(2 / 5 / 128)
                assert parameter.std().item() == pytest.approx(expected, rel=0.05), name

    def test_the_same_seed_builds_the_same_model(self) -> None:
        states = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            states.append(WORKLOAD.build(NANO).state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert not torch.equal(states[0]["embed.weight"], states[2]["embed.weight"])

    @pytest.mark.parametrize("name", SMALL)
    def test_learns_a_batch(self, name: str) -> None:
        torch.manual_seed(0)
        model, batch = WORKLOAD.build(SMALL[name]), WORKLOAD.synthetic(SMALL[name], 4, CPU)
        optimizer = WORKLOAD.optimizer(model.parameters())
        losses = []
        for _ in range(16):
            loss = WORKLOAD.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(math.log(SMALL[name].sample["vocab_size"]), rel=0.1)
        assert losses[-1] < 0.75 * losses[0]

    def test_optimizer_is_that_of_the_reference(self) -> None:
        optimizer = WORKLOAD.optimizer([nn.Parameter(torch.zeros(1))])
        (group,) = optimizer.param_groups
        assert isinstance(optimizer, torch.optim.AdamW)
        assert (group["lr"], group["betas"], group["weight_decay"]) == (WORKLOAD.learning_rate, (0.9, 0.95), 0.1)

    @pytest.mark.parametrize("variant", [TINY, REFERENCE], ids=["tiny", "reference"])
    def test_synthetic_batches_look_like_the_loaders(self, variant: Variant) -> None:
        sample = token_sample(0, fresh, 0, variant.sample)
        decoded = decode_one(TOKENS, sample, variant.sample, random.Random(0))["tokens"]
        tokens = WORKLOAD.synthetic(variant, 6, CPU)["tokens"]
        assert (tokens.shape, tokens.dtype) == ((6, *decoded.shape), decoded.dtype)
        assert tokens.min() >= 0 and tokens.max() < variant.sample["vocab_size"]
        assert tokens.unique().numel() > 100


DIVISIBLE = {
    "nano": {"num_heads": 8, "num_kv_heads": 8, "ffn_size": 256, "vocab_size": 128, "seq_len": 16},
    "nano_moe": {"num_heads": 8, "num_kv_heads": 8, "vocab_size": 128, "seq_len": 16},
    "nano_gpt2": {"num_heads": 8, "num_kv_heads": 8, "ffn_size": 256, "vocab_size": 131, "seq_len": 16},
    "nano_llama": {"num_heads": 8, "num_kv_heads": 4, "ffn_size": 192, "vocab_size": 128, "seq_len": 16},
}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("name", DIVISIBLE)
def test_tensor_parallel_plan_names_modules_of_the_model(name: str, sequence_parallel: bool) -> None:
    assert WORKLOAD.tensor_parallel is not None
    model, _ = built(SMALL[name])
    modules = [found for found, _ in model.named_modules()]
    for pattern in WORKLOAD.tensor_parallel.plan(model, sequence_parallel, True):
        assert any(fnmatch(found, pattern) for found in modules), pattern
    divisible = WORKLOAD.tensor_parallel.divisible(SMALL[name])
    assert divisible == DIVISIBLE[name]
