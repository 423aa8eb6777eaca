"""T(N) of a transformer's training step: compute, tensor, pipeline and data parallelism, each a closed form.

Their constants are few and physical, and are fitted (`predict.scaling.layout_fit`); `PRIORS` says what they are before
any measurement. Shapes follow Narayanan et al. 2021 (arXiv:2104.04473) and Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import terms
from benchsuite.predict.theory.input import mean_of_slowest

HALF_BYTES, ADAM_BYTES = 2, 16
"""Of a value in 16 bits; of a parameter with gradient, master copy and Adam's two moments."""
SHARP = 4
"""How sharply a layer turns from bound by launches to bound by arithmetic: the p of the p-norm of both times."""
PASSES: Mapping[bool, Floats] = {False: np.array([2.0, 2.0, 1.0, 0.0]), True: np.array([0.0, 0.0, 1.0, 3.0])}
"""How often ZeRO 0 to 3 pass all parameters or gradients: False once a step, True for every microbatch."""


@dataclass(frozen=True)
class Prior:
    """What a constant is before it is fitted: log-normal."""

    median: float
    log_sd: float
    meaning: str


PRIORS: Mapping[str, Prior] = {
    "flops_per_s": Prior(220e12, 0.75, "matrix products of one device, large ones"),
    "half_tokens": Prior(200, 1.5, "tokens of a microbatch at which products run at half that rate"),
    "launch_s": Prior(1e-3, 1.05, "least time of a layer, forward and backward: launches of kernels"),
    "elementwise_bytes_per_s": Prior(200e9, 0.75, "activations written and read again by all that is no product"),
    "score_weight": Prior(1.0, 0.75, "traffic of attention's scores over 5 a s / h of a layer's activations"),
    "attention_weight": Prior(1.0, 0.75, "time of attention's products over that of as many FLOPs elsewhere"),
    "head_weight": Prior(1.0, 0.45, "time of the vocabulary's head over what its FLOPs and bytes say"),
    "latency_s": Prior(5e-6, 0.75, "one message of a ring between data-parallel devices"),
    "tensor_latency_s": Prior(20e-6, 1.05, "one tensor-parallel exchange, times log2 of its devices"),
    "link_bytes_per_s": Prior(150e9, 0.75, "device to device within a node"),
    "link_growth": Prior(1.3, 0.3, "1 + the power by which that rate grows with the devices of an exchange"),
    "node_bytes_per_s": Prior(80e9, 0.75, "node to node, all devices of a node together"),
    "overlap": Prior(0.5, 1.5, "odds that communication of parameters and gradients hides behind computation"),
    "send_weight": Prior(0.5, 1.05, "share of transfers between pipeline stages that is not hidden"),
    "update_s_per_byte": Prior(20e-12, 1.05, "optimizer, per byte of states on the device"),
    "step_s": Prior(5e-3, 1.5, "constant time per step"),
    "jitter": Prior(0.01, 0.75, "spread of a device's step over the step; the slowest of N counts"),
}


@dataclass(frozen=True)
class Configurations:
    """Training configurations, one an element: float64 arrays of one shape (n,)."""

    microbatch: Floats
    """Sequences."""
    num_microbatches: Floats
    """Per step and data-parallel rank."""
    seq_len: Floats
    num_layers: Floats
    hidden_size: Floats
    num_heads: Floats
    vocab_size: Floats
    tensor: Floats
    pipeline: Floats
    data: Floats
    zero: Floats
    """0 to 3; 3 is FSDP's FULL_SHARD."""
    recompute: Floats
    """1: every layer's forward pass is done again."""
    flash: Floats
    """1: attention's scores never reach memory."""
    ranks_per_node: Floats

    @property
    def ranks(self) -> Floats:
        """Devices in all."""
        return self.tensor * self.pipeline * self.data

    @property
    def tokens(self) -> Floats:
        """Of one microbatch."""
        return self.microbatch * self.seq_len

    @property
    def step_tokens(self) -> Floats:
        """Of one step, all devices."""
        return self.tokens * self.num_microbatches * self.data

    @property
    def params_per_device(self) -> Floats:
        """12 l h^2 / (t p) + V h / t: norms and biases are left out."""
        blocks = 12 * self.num_layers * self.hidden_size**2 / (self.tensor * self.pipeline)
        return blocks + self.vocab_size * self.hidden_size / self.tensor

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> "Configurations":
        """Some of them."""
        return Configurations(**{field.name: getattr(self, field.name)[which] for field in fields(self)})


@dataclass(frozen=True)
class StepParts:
    """Seconds per step; they add up to it."""

    compute: Floats
    """Products, elementwise traffic and launches of the longest stage, head included."""
    tensor: Floats
    """Tensor-parallel all-reduces, never hidden."""
    bubble: Floats
    """Waiting for other stages, and transfers between them."""
    data: Floats
    """Exchange of parameters and gradients that is not hidden."""
    rest: Floats
    """Optimizer, constant, jitter."""

    @property
    def step_s(self) -> Floats:
        """All of them."""
        return self.compute + self.tensor + self.bubble + self.data + self.rest


Constants = Mapping[str, float]


def parts(runs: Configurations, constants: Constants) -> StepParts:
    """The step of each, by 1F1B with m microbatches over p stages: m - 1 longest stages and a pass through all.

    Conditions: uniform layers, an MLP of 4 h, ranks placed tensor first, then data, then pipeline; values of 16 bits.
    """
    share = runs.num_layers / runs.pipeline
    layer, head, exchange = layer_s(runs, constants), head_s(runs, constants), tensor_s(runs, constants)
    stage = share * (layer + exchange)
    send = send_s(runs, constants)
    m, p = runs.num_microbatches, runs.pipeline
    passes = (m - 1) * (stage + head + send) + p * stage + head + 2 * (p - 1) * send
    each = m * data_s(runs, constants, stage + head, sharded=True)
    once = data_s(runs, constants, stage + head, sharded=False)
    states = ADAM_BYTES * runs.params_per_device / np.where(runs.zero >= 1, runs.data, 1)
    rest = constants["update_s_per_byte"] * states + constants["step_s"]
    whole = passes + each + once + rest
    slowest = constants["jitter"] * of_slowest(runs.ranks)
    return StepParts(
        compute=m * (share * layer + head),
        tensor=m * share * exchange,
        bubble=passes - m * (stage + head),
        data=each + once,
        rest=rest + whole * slowest,
    )


def of_slowest(ranks: Floats) -> Floats:
    """How many standard deviations the slowest of N devices lies above the mean, on average."""
    numbers, places = np.unique(ranks, return_inverse=True)
    return np.array([_of_slowest(int(number)) for number in numbers])[places]


@cache
def _of_slowest(ranks: int) -> float:
    return float(mean_of_slowest(0.0, 1.0, ranks))


def layer_s(runs: Configurations, constants: Constants) -> Floats:
    """Forward, recomputed and backward of one layer and microbatch on one device, without communication.

    Products: (72 or 96) b s h^2 (1 + w s/6h) / t FLOPs at a rate that saturates with the tokens of a microbatch.
    Elementwise: the bytes that tensor parallelism leaves, s b h (10 + 24/t + 5 w a s/(h t)), written and read.
    """
    tokens, h, s, t = runs.tokens, runs.hidden_size, runs.seq_len, runs.tensor
    scores = constants["attention_weight"] * s / (6 * h)
    flops = (72 + 24 * runs.recompute) * tokens * h**2 * (1 + scores) / t
    kept = constants["score_weight"] * np.where(runs.flash > 0, 0.0, 5 * runs.num_heads * s / t)
    traffic = tokens * (10 * h + 24 * h / t + kept) * (3 + runs.recompute) / 3
    seconds = flops / rate(runs, constants) + traffic / constants["elementwise_bytes_per_s"]
    bound: Floats = (seconds**SHARP + constants["launch_s"] ** SHARP) ** (1 / SHARP)
    return bound


def rate(runs: Configurations, constants: Constants) -> Floats:
    """FLOP/s of products in a microbatch of so many tokens."""
    return constants["flops_per_s"] / (1 + constants["half_tokens"] / runs.tokens)


def head_s(runs: Configurations, constants: Constants) -> Floats:
    """Logits and loss of one microbatch, forward and backward: 6 b s h V / t FLOPs, and 4 bytes a logit."""
    logits = runs.tokens * runs.vocab_size / runs.tensor
    products = 6 * runs.hidden_size * logits / rate(runs, constants)
    return constants["head_weight"] * (products + 4 * logits / constants["elementwise_bytes_per_s"])


def tensor_s(runs: Configurations, constants: Constants) -> Floats:
    """All-reduces of b s h values in one layer and microbatch: 4, with recomputation 6."""
    t = runs.tensor
    wire = terms("all_reduce", t).wire * runs.tokens * runs.hidden_size * HALF_BYTES
    inside = np.minimum(t, runs.ranks_per_node)
    link = np.where(t <= runs.ranks_per_node, constants["link_bytes_per_s"], constants["node_bytes_per_s"])
    speed = link * (inside / 2) ** (constants["link_growth"] - 1)
    latency = constants["tensor_latency_s"] * np.log2(np.maximum(t, 2))
    return np.where(t > 1, (4 + 2 * runs.recompute) * (latency + wire / speed), 0.0)


def send_s(runs: Configurations, constants: Constants) -> Floats:
    """One microbatch from stage to stage and its gradient back, what is not hidden; each device sends its 1/t."""
    num_bytes = 2 * runs.tokens * runs.hidden_size * HALF_BYTES / runs.tensor
    crosses = runs.tensor * runs.data >= runs.ranks_per_node
    own = constants["node_bytes_per_s"] / runs.ranks_per_node
    speed = np.where(crosses, own, constants["link_bytes_per_s"])
    return np.where(runs.pipeline > 1, constants["send_weight"] * num_bytes / speed, 0.0)


def data_s(runs: Configurations, constants: Constants, beside_s: Floats, sharded: bool) -> Floats:
    """Exchange over data-parallel ranks that computation of `beside_s` seconds does not hide.

    `sharded`: what sharded gradients and parameters cost for every microbatch; else what is exchanged once a step.
    Passes of all parameters through a reduce_scatter or all_gather (`volumes.data_parallel_passes`; arXiv:1910.02054,
    section 7): ZeRO 0 and 1 two a step; ZeRO 2 one for every microbatch's gradients and one a step for the parameters;
    ZeRO 3 three a microbatch, layer by layer, with the latency of each. Groups of ranks that leave a node share its
    links: t of them, at most all its devices.
    """
    t, d = runs.tensor, runs.data
    inside = t * d <= runs.ranks_per_node
    groups = np.minimum(t, runs.ranks_per_node)
    s_per_byte = np.where(inside, 1 / constants["link_bytes_per_s"], groups / constants["node_bytes_per_s"])
    ring = terms("all_gather", d)
    layered = (runs.zero >= 3) & sharded
    passes = PASSES[sharded][np.clip(runs.zero, 0, 3).astype(np.intp)]
    latency = np.where(layered, runs.num_layers / runs.pipeline * ring.latency * constants["latency_s"], 0.0)
    whole = passes * (ring.wire * HALF_BYTES * runs.params_per_device * s_per_byte + latency)
    hidden: Floats = constants["overlap"] / (1 + constants["overlap"]) * np.minimum(whole, beside_s)
    return np.asarray(whole - hidden, dtype=np.float64)
