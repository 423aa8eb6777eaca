"""(g) The step of each tiny model over that of the same model by transformers or MONAI, under the same settings.

Both train on the same batch in float32 with the same optimizer, on one thread; blocks of steps take turns.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.pairs import Ratio, interleaved
from bench.tables import goal
from benchsuite import workloads
from benchsuite.workloads.unet3d import dice_cross_entropy
from benchsuite.workloads.workload import Batch, Workload

MAX_RATIO = 1.0
PAIRS = 40
STEPS = 3
"""Steps per block."""
BATCHES = {"resnet50": 8, "unet3d": 2, "bert": 8, "gpt_neox": 8}
Loss = Callable[[Batch], Tensor]


def resnet50(workload: Workload) -> tuple[nn.Module, Loss]:
    """transformers' ResNet of the same depths and widths."""
    from transformers import ResNetConfig, ResNetForImageClassification

    variant = workload.variants["tiny"]
    width = int(variant.model["width"])  # type: ignore[arg-type]
    model = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=width,
            hidden_sizes=[4 * width << number for number in range(4)],
            depths=list(variant.model["layers"]),  # type: ignore[arg-type]
            num_labels=variant.num_classes,
        )
    )
    return model, lambda batch: nn.functional.cross_entropy(model(batch["image"]).logits, batch["label"])


def unet3d(workload: Workload) -> tuple[nn.Module, Loss]:
    """MONAI's DynUNet with the same filters; the loss is ours on both sides."""
    from monai.networks.nets import DynUNet  # type: ignore[import-untyped]

    filters = list(workload.variants["tiny"].model["filters"])  # type: ignore[arg-type]
    levels = len(filters) + 1
    model: nn.Module = DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        kernel_size=[3] * levels,
        strides=[1] + [2] * (levels - 1),
        upsample_kernel_size=[2] * (levels - 1),
        filters=[*filters, filters[-1]],
        norm_name=("instance", {"affine": True}),
        act_name="relu",
        trans_bias=True,
    )
    return model, lambda batch: dice_cross_entropy(model(batch["image"]), batch["label"])


def bert(workload: Workload) -> tuple[nn.Module, Loss]:
    """transformers' BertForPreTraining, which scores every position and not only the masked ones."""
    from transformers import BertConfig, BertForPreTraining

    variant = workload.variants["tiny"]
    shape, sample = variant.model, variant.sample
    model = BertForPreTraining(
        BertConfig(
            vocab_size=sample["vocab_size"],
            hidden_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            intermediate_size=4 * int(shape["hidden"]),  # type: ignore[arg-type]
            max_position_embeddings=sample["seq_len"],
        )
    )

    def loss(batch: Batch) -> Tensor:
        ids = batch["masked_lm_ids"]
        labels = torch.full_like(batch["input_ids"], -100)
        labels.scatter_(1, batch["masked_lm_positions"], torch.where(ids > 0, ids, -100))
        found: Tensor = model(
            batch["input_ids"],
            attention_mask=(batch["input_ids"] != 0).long(),
            token_type_ids=batch["segment_ids"],
            labels=labels,
            next_sentence_label=batch["next_sentence_label"],
        ).loss
        return found

    return model, loss


def gpt_neox(workload: Workload) -> tuple[nn.Module, Loss]:
    """transformers' GPTNeoXForCausalLM; the loss is taken as ours is, of the same tokens."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    variant = workload.variants["tiny"]
    shape = variant.model
    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=variant.sample["vocab_size"],
            hidden_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            intermediate_size=4 * int(shape["hidden"]),  # type: ignore[arg-type]
            max_position_embeddings=variant.sample["seq_len"],
            use_cache=False,
        )
    )

    def loss(batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1]).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


OTHERS: Mapping[str, Callable[[Workload], tuple[nn.Module, Loss]]] = {
    "resnet50": resnet50,
    "unet3d": unet3d,
    "bert": bert,
    "gpt_neox": gpt_neox,
}


def block(model: nn.Module, loss: Loss, batch: Batch, workload: Workload) -> Callable[[], float]:
    """A block of steps; returns its seconds."""
    optimizer = workload.optimizer(model.parameters())

    def run() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    return run


def measure() -> dict[str, tuple[Ratio, float]]:
    """By workload: our step over the other's with its interval, and ours in milliseconds."""
    torch.set_num_threads(1)
    found = {}
    for name, other in OTHERS.items():
        torch.manual_seed(0)
        workload: Workload = workloads.load(workloads.WORKLOADS, name)
        variant = workload.variants["tiny"]
        batch = workload.synthetic(variant, BATCHES[name], torch.device("cpu"))
        own = workload.build(variant)
        ours = block(own, lambda batch, own=own, workload=workload: workload.loss(own, batch), batch, workload)
        theirs_model, theirs_loss = other(workload)
        check_size(own, theirs_model, name)
        theirs = block(theirs_model.train(), theirs_loss, batch, workload)
        ours(), theirs()
        found[name] = (interleaved(ours, theirs, PAIRS), ours() / STEPS * 1e3)
    return found


def check_size(ours: nn.Module, theirs: nn.Module, name: str) -> None:
    """Both have as many parameters, or they are not the same model."""
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{name}: {sizes[0]} parameters here, {sizes[1]} there: not the same model")


def show(_folder: Path) -> None:
    """Print the ratio of each model."""
    print("(g) a step of each tiny model over the same model's by transformers or MONAI, float32, 1 thread")
    for name, (ratio, ours_ms) in measure().items():
        print(f"    {name}: {ratio} (ours {ours_ms:.0f} ms)")
        print(goal(ratio.low <= MAX_RATIO, f"<= {MAX_RATIO}, within its interval"))
