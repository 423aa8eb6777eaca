"""What a model's layers hold and compute, in closed form: the parts that a planner spreads over devices."""

from dataclasses import dataclass

from benchsuite.predict.layout.models import Model


@dataclass(frozen=True)
class Shape:
    """One sample's forward FLOPs (a multiply-add is two) and the parameters, by part. Layers are the mean layer."""

    layer_params: float
    embedding_params: float
    """Before the layers: tokens, positions, patches."""
    head_params: float
    """After them, with a matrix of its own only where it is not tied to the embedding."""
    matrix_flops: float | None
    """Of one layer; None where nothing is published."""
    attention_flops: float
    """Of one layer's scores and their products with the values; what selective recomputation repeats."""
    head_flops: float

    def params(self, num_layers: int) -> float:
        """All of them."""
        return self.layer_params * num_layers + self.embedding_params + self.head_params


def shape_of(model: Model) -> Shape:
    """The shape of a model.

    Transformers: per layer 2 matrices of h x q and 2 of h x k for attention (q, k: heads and key-value heads times
    their width), 2 or (gated) 3 of h x f; 2 operations a parameter and token, and 4 s q a token for scores and values
    over the full square: with f = 4h, q = k = h these are Megatron's forms (arXiv:2104.04473: 12 l h^2, ...). A
    decoder's layer beside an encoder has a second attention, over the encoder's tokens. Grouped heads: k < q.
    """
    if not model.shaped:
        flops = model.train_flops_per_sample
        return Shape(model.published_params or 0.0, 0.0, 0.0, None if flops is None else flops / 3, 0.0, 0.0)
    own = _layer_params(model, cross=False)
    if model.kind != "encoder-decoder":
        matrix, scores = _forward(model, model.tokens, model.tokens)
        return _with_ends(model, own, matrix, scores, model.tokens)
    encoder, decoder = model.layers or 1, model.decoder_layers or 1
    wide, targets = _layer_params(model, cross=True), model.decoder_seq_len or 1
    first, first_scores = _forward(model, model.tokens, model.tokens)
    second, second_scores = _cross_forward(model, targets)
    layers = encoder + decoder
    mean = (encoder * own + decoder * wide) / layers
    matrix = (encoder * first + decoder * second) / layers
    scores = (encoder * first_scores + decoder * second_scores) / layers
    return _with_ends(model, mean, matrix, scores, targets)


def widths(model: Model) -> tuple[int, int, int, int]:
    """h, q, k, f: a token's width, those of all heads and of all key-value heads, and that inside the MLP."""
    head = model.head_dim or model.width // model.num_heads
    return model.width, model.num_heads * head, (model.kv_heads or model.num_heads) * head, ffn(model)


def ffn(model: Model) -> int:
    """Width inside the MLP."""
    return model.ffn_hidden or 4 * model.width


def _matrices(model: Model) -> tuple[int, int]:
    """Parameters of the matrices of one attention, and of the MLP."""
    h, q, k, f = widths(model)
    return 2 * h * q + 2 * h * k, (3 if model.gated_mlp else 2) * h * f


def _layer_params(model: Model, cross: bool) -> int:
    h, q, k, f = widths(model)
    attention, mlp = _matrices(model)
    if model.bias:
        attention += q + 2 * k + h
        mlp += (2 if model.gated_mlp else 1) * f + h
    norm = h if model.rms_norm else 2 * h
    return (2 if cross else 1) * (attention + norm) + mlp + norm


def _forward(model: Model, queries: int, keys: int) -> tuple[float, float]:
    """Forward FLOPs of a sample in one layer: of matrices, and of attention."""
    attention, mlp = _matrices(model)
    return 2.0 * queries * (attention + mlp), 4.0 * queries * keys * widths(model)[1]


def _cross_forward(model: Model, targets: int) -> tuple[float, float]:
    """The same of a decoder's layer: keys and values of the second attention are made of the encoder's tokens."""
    h, q, k, _ = widths(model)
    attention, mlp = _matrices(model)
    matrix = 2.0 * targets * (attention + mlp + 2 * h * q) + 2.0 * model.tokens * 2 * h * k
    return matrix, 4.0 * targets * (targets + model.tokens) * q


def _with_ends(model: Model, layer: float, matrix: float, scores: float, last_tokens: int) -> Shape:
    h, vocab = model.width, model.vocab or 0
    norms = (2 if model.kind == "encoder-decoder" else 1) * (h if model.rms_norm else 2 * h)
    positions = h * model.tokens if model.learned_positions else 0
    head = 2.0 * (model.predictions or last_tokens) * h * vocab + model.other_forward_flops_per_sample
    if model.predictions:
        head += 2.0 * model.predictions * h * h
    return Shape(
        layer_params=layer,
        embedding_params=float(vocab * h + positions + model.other_params),
        head_params=float(norms + (0 if model.tied_embeddings else vocab * h)),
        matrix_flops=matrix,
        attention_flops=scores,
        head_flops=head,
    )


def params(model: Model) -> float:
    """Parameters of a model."""
    return shape_of(model).params(model.num_layers)


def train_flops_per_sample(model: Model) -> float | None:
    """Model FLOPs of one sample forward and backward, nothing recomputed; None where they are not known."""
    of = shape_of(model)
    if of.matrix_flops is None:
        return None
    return 3 * (model.num_layers * (of.matrix_flops + of.attention_flops) + of.head_flops)


def sample_bytes(model: Model) -> float | None:
    """Stored bytes of one sample; None where not known."""
    if model.sample_bytes is not None or model.bytes_per_token is None:
        return model.sample_bytes
    return model.bytes_per_token * (model.tokens + (model.decoder_seq_len or 0))
