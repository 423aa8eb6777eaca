"""What can be asked of a workload, and how it is parallelized (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_RANKS, MAX_COUNT = 1 << 17, 1_000_000_000
"""Larger than any machine and any count that a trial could come to the end of; what is above is a slip of the pen, and
planning walks over ranks."""
Precision = Literal["fp32", "tf32", "bf16", "fp16", "pure_bf16"]
PRECISIONS_NOT_YET = ("fp8",)
Optimizer = Literal["sgd", "momentum", "adamw", "adafactor"]
Schedule = Literal["naive", "gpipe", "1f1b", "interleaved", "zero_bubble"]


@dataclass(frozen=True)
class Variant:
    """One size of a workload: the model's shape and the parameters of its samples."""

    model: Mapping[str, int | float | tuple[int, ...]]
    sample: Mapping[str, int]
    num_classes: int = 0
    """Classes of samples with labels; 0 for others."""


class Parallelism(BaseModel):
    """Degrees of parallelism: dp x tp x pp x cp = world size; an omitted dp is what is left."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dp: int | None = Field(
        None, ge=1, le=MAX_RANKS, description="data-parallel ranks; default: world size / (tp pp cp)"
    )
    dp_replicate: int = Field(
        1, ge=1, le=MAX_RANKS, description="of these, replicas of a sharded model (hsdp); divides dp"
    )
    tp: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share each layer")
    pp: int = Field(1, ge=1, le=MAX_RANKS, description="pipeline stages, or ranks that take several stages each")
    cp: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share each sequence (not yet)")
    ep: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share the experts; divides dp")
    zero: int = Field(
        0, ge=0, le=3, description="sharded over dp: 1 optimizer, 2 and gradients, 3 and weights (fully sharded)"
    )
    engine: Literal["torch", "deepspeed", "horovod", "parameter_server"] = Field("torch", description="torch")
    schedule: Schedule = Field("1f1b", description="of the pipeline: naive | gpipe | 1f1b | interleaved | zero_bubble")
    microbatches: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="pieces of a rank's batch in the pipeline; default: pp, naive: 1",
    )
    sequence_parallel: bool = Field(False, description="activations between layers are sharded over tp as well")
    loss_parallel: bool = Field(False, description="logits stay sharded over tp in the loss")


class ComputeSpec(BaseModel):
    """How a rank computes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    precision: Precision = Field(
        "fp32",
        description="fp32 | tf32 (CUDA) | bf16, fp16: autocast over float32 weights | pure_bf16: weights too",
    )
    optimizer: Optimizer | None = Field(None, description="default: the one of the workload's reference")
    fused: bool = Field(False, description="the optimizer's fused implementation")
    lr_scaling: Literal["none", "linear"] = Field(
        "none", description="linear: the learning rate grows with the global batch, as of 256 samples (Goyal 2017)"
    )
    lr_warmup_steps: int = Field(0, ge=0, le=MAX_COUNT, description="steps over which the learning rate rises from 0")
    grad_accum: int = Field(
        1, ge=1, le=MAX_COUNT, description="microbatches a rank's batch is cut into, exchanged once"
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none", description="recompute in backward: full: whole blocks; selective: all but matmuls and convolutions"
    )
    compile: bool = Field(False, description="torch.compile of each block")
    cudnn_benchmark: bool = Field(
        False, description="cuDNN times its convolutions at each new shape and keeps the fastest; CUDA"
    )
    channels_last: bool = Field(False, description="images and volumes with channels innermost")
    bucket_cap_mb: int | None = Field(None, ge=1, le=MAX_COUNT, description="ddp: size of gradient buckets; default 25")
    comm_hook: Literal["fp16", "bf16", "powersgd"] | None = Field(
        None, description="ddp: how gradients are compressed for the exchange"
    )

    @field_validator("comm_hook", mode="before")
    @classmethod
    def _none_is_none(cls, value: object) -> object:
        return None if value == "none" else value

    static_graph: bool = Field(False, description="ddp: the graph of every step is the same")
    gradient_as_bucket_view: bool = Field(False, description="ddp: gradients lie in the buckets")
    reshard_after_forward: bool | None = Field(
        None, description="fsdp: weights are dropped after forward; default: true for zero 3, false for zero 2"
    )
    prefetch_blocks: int = Field(
        0, ge=0, le=MAX_COUNT, description="fsdp: blocks whose weights are gathered ahead; 0: as torch does"
    )
    cpu_offload: bool = Field(False, description="fsdp: shards lie in host memory")
