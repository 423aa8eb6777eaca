"""Parameters of families of transformers, exact: l num_layers, h hidden_size, V vocab_size, s seq_len."""

from numpy.typing import ArrayLike

from benchsuite.predict.arrays import Floats, positive, whole
from benchsuite.predict.flops import transformer_params


def neox_params(num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike) -> Floats:
    """Parameters of GPT-NeoX: rotary positions, untied embeddings, biases, exact: l (12 h^2 + 13 h) + 2 V h + 2 h."""
    layers, h, v = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size)
    return layers * (12 * h**2 + 13 * h) + 2 * v * h + 2 * h


def llama_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    ffn_size: ArrayLike,
    vocab_size: ArrayLike,
    num_heads: ArrayLike,
    num_kv_heads: ArrayLike,
) -> Floats:
    """Parameters of LLaMA: gated MLP, no biases, RMS norms, grouped queries, untied embeddings, exact.

    l (2 h^2 + 2 h^2 k/a + 3 h f + 2 h) + 2 V h + h (Touvron et al. 2023, arXiv:2307.09288), k of a heads hold keys.
    """
    layers, h, f, v = positive(num_layers=num_layers, hidden_size=hidden_size, ffn_size=ffn_size, vocab_size=vocab_size)
    a, k = whole(num_heads=num_heads, num_kv_heads=num_kv_heads)
    return layers * (2 * h**2 * (1 + k / a) + 3 * h * f + 2 * h) + 2 * v * h + h


def gpt2_params(num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike, seq_len: ArrayLike) -> Floats:
    """Parameters of GPT-2, exact: `transformer_params` and the final norm's 2 h (Radford et al. 2019)."""
    (h,) = positive(hidden_size=hidden_size)
    return transformer_params(num_layers, h, vocab_size, seq_len) + 2 * h


def bert_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    vocab_size: ArrayLike = 30_522,
    seq_len: ArrayLike = 512,
    pooler: bool = True,
    heads: bool = False,
) -> Floats:
    """Parameters of BERT (Devlin et al. 2018), exact: l (12 h^2 + 13 h) + (V + s + 2) h + 2 h, with two segments.

    The pooler has h^2 + h; `heads`: of masked tokens h^2 + 3 h + V (tied to the embedding) and next sentence 2 h + 2.
    """
    layers, h, v, s = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size, seq_len=seq_len)
    body = layers * (12 * h**2 + 13 * h) + (v + s + 4) * h
    return body + pooler * (h**2 + h) + heads * (h**2 + 5 * h + v + 2)


def vit_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    patch_size: ArrayLike,
    image_size: ArrayLike = 224,
    num_classes: ArrayLike = 1000,
) -> Floats:
    """Parameters of a ViT with an MLP of 4 h and a class token (Dosovitskiy et al. 2020), exact.

    l (12 h^2 + 13 h), patches (3 q^2 + 1) h, positions ((i/q)^2 + 1) h, class token h, final norm 2 h, head (h + 1) c.
    """
    layers, h, q, image, classes = positive(
        num_layers=num_layers,
        hidden_size=hidden_size,
        patch_size=patch_size,
        image_size=image_size,
        num_classes=num_classes,
    )
    tokens = (image // q) ** 2 + 1
    return layers * (12 * h**2 + 13 * h) + (3 * q**2 + 1 + tokens + 3) * h + (h + 1) * classes
