"""FLOPs, parameters, training days and utilization of transformers: closed forms. 2 FLOPs per multiply-add.

B batch_size, s seq_len, l num_layers, h hidden_size, V vocab_size, P params, T tokens, n num_devices, X FLOP/s.
`benchsuite.workloads.flops` counts real models; the forms here need only shapes, and a test holds them to the counts.
Other transformers than a GPT with an MLP of 4 h: `benchsuite_plan.layout.models`.
"""

from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, fraction, positive

SECONDS_PER_DAY = 86_400
RECOMPUTE = ("full", "none", "selective", "selective_published")
FORWARD_PASSES = {"full": 4, "none": 3, "selective": 3, "selective_published": 3}
"""Forward, backward (twice the forward), and the forward pass again where everything is recomputed."""
ATTENTION_PASSES = {"full": 4, "none": 3, "selective": 4, "selective_published": 6}
"""Passes of attention's two matrix products. Korthikanti et al. print (1 + s/3h) for selective: twice what it is."""


def transformer_flops(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    vocab_size: ArrayLike,
    recompute: str = "full",
    causal: bool = False,
) -> Floats:
    """FLOPs of one training step of a GPT (MLP of 4 h) on the whole batch.

    `full`: every layer's forward pass is done again, 96 B s l h^2 (1 + s/6h + V/16lh) (Narayanan et al. 2021,
    arXiv:2104.04473, eq. 2). `none`: 72 B s l h^2 (1 + s/6h + V/12lh), the model's FLOPs. `selective`: attention alone
    is done again, 72 B s l h^2 (1 + 2s/9h + V/12lh); `selective_published`: with s/3h, as Korthikanti et al. 2022
    (arXiv:2205.05198) print it. The head is never recomputed. GPT-NeoX's logger uses 72 with V/16lh, a quarter of the
    head less. `causal` counts only what a causal mask leaves of attention (half); the papers and `workloads.flops`
    count all of it. Norms, activations and the optimizer are left out.

    Raises:
        UserError: another `recompute`, or a shape not above 0.
    """
    if recompute not in RECOMPUTE:
        raise refuse("recompute", recompute, RECOMPUTE)
    b, s, layers, h, v = positive(
        batch_size=batch_size, seq_len=seq_len, num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size
    )
    products = 24 * h**2 * FORWARD_PASSES[recompute]
    attention = 4 * s * h * ATTENTION_PASSES[recompute] * (0.5 if causal else 1)
    return b * s * (layers * (products + attention) + 6 * h * v)


def transformer_params(
    num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike, seq_len: ArrayLike
) -> Floats:
    """Parameters of a GPT with learned positions and tied embeddings: 12 l h^2 (1 + 13/12h + (V + s)/12lh).

    Narayanan et al. 2021 (arXiv:2104.04473), section 5.1; the final norm (2h) is left out.
    """
    layers, h, v, s = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size, seq_len=seq_len)
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


def flops_per_token(
    params: ArrayLike,
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    seq_len: ArrayLike,
    convention: str = "full_attention",
) -> Floats:
    """Training FLOPs a token, without recomputation.

    `full_attention`: 6 P + 12 l h s (PaLM, arXiv:2204.02311, appendix B; nanoGPT, llm-foundry); `causal`: 6 P + 6 l h
    s (MaxText since 2025); `none`: 6 P (Kaplan et al. 2020). P counts what each reports: with embeddings in llm-foundry
    and PaLM, without them in torchtitan (pass P - P_embedding). Say which convention a figure has.
    """
    share = {"full_attention": 12.0, "causal": 6.0, "none": 0.0}
    if convention not in share:
        raise refuse("convention", convention, share)
    p, layers, h, s = positive(params=params, num_layers=num_layers, hidden_size=hidden_size, seq_len=seq_len)
    return 6 * p + share[convention] * layers * h * s


def training_days(params: ArrayLike, tokens: ArrayLike, num_devices: ArrayLike, achieved_flops: ArrayLike) -> Floats:
    """Days of a run with full recomputation: 8 T P / (n X) / 86,400 (Narayanan et al. 2021, eq. 4).

    `achieved_flops`: FLOP/s that one device achieves. 1.4 to 3 % below `exact_training_days` for GPTs of 175B up.
    """
    p, t, n, x = positive(params=params, tokens=tokens, num_devices=num_devices, achieved_flops=achieved_flops)
    return 8 * t * p / (n * x) / SECONDS_PER_DAY


def exact_training_days(
    step_flops: ArrayLike,
    step_tokens: ArrayLike,
    tokens: ArrayLike,
    num_devices: ArrayLike,
    achieved_flops: ArrayLike,
) -> Floats:
    """Days of T tokens: T/(B s) F/(n X) / 86,400, with `step_tokens` B s and `step_flops` F of `transformer_flops`."""
    f, per_step, t, n, x = positive(
        step_flops=step_flops,
        step_tokens=step_tokens,
        tokens=tokens,
        num_devices=num_devices,
        achieved_flops=achieved_flops,
    )
    return t / per_step * f / (n * x) / SECONDS_PER_DAY


def utilization(step_flops: ArrayLike, step_s: ArrayLike, num_devices: ArrayLike, peak_flops: ArrayLike) -> Floats:
    """Share of the devices' dense peak: MFU with the model's FLOPs (`recompute="none"`), HFU with those really done.

    Chowdhery et al. 2022 (PaLM), section 4.1. Give the dense peak: half of what is printed for sparse matrices.
    """
    f, t, n, peak = positive(step_flops=step_flops, step_s=step_s, num_devices=num_devices, peak_flops=peak_flops)
    return f / (t * n * peak)


def step_s(step_flops: ArrayLike, num_devices: ArrayLike, peak_flops: ArrayLike, efficiency: ArrayLike = 1.0) -> Floats:
    """Seconds of a step that reaches `efficiency` (0 to 1) of the devices' peak: the inverse of `utilization`."""
    f, n, peak = positive(step_flops=step_flops, num_devices=num_devices, peak_flops=peak_flops)
    (share,) = fraction(efficiency=efficiency)
    (share,) = positive(efficiency=share)
    return f / (n * peak * share)
