"""Records: one row per measurement, of four kinds. Versioned JSON; fields are only ever added.

schema_version history:
  1  first version
  2  `exchange_s`, `exchange_min_s` and `update_s` are `communication_s`, `communication_min_s` and `optimizer_s`; parts
     of a step in raw samples likewise. The verdict `client` is `preprocessing`. Version 1 is read under these names.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from benchsuite.results.store import shapes
from benchsuite.results.store.shapes import MAX_NUMBER
from benchsuite.results.store.verdicts import Cause, PreprocessingPart, Verdict

SCHEMA_VERSION = 2
FORMER_FIGURES = {
    "communication_s": "exchange_s",
    "communication_min_s": "exchange_min_s",
    "optimizer_s": "update_s",
}
"""What figures were called in records of version 1."""
FORMER_PARTS = {"exchange": "communication", "update": "optimizer"}
"""What parts of a step in raw samples of version 1 are called since."""
DONE_BEFORE: Mapping[str, Any] = {"cpu_binding": "none", "cudnn_benchmark": False, "data.image_dtype": "float32"}
"""What trials did whose records do not say, since they are from before these settings."""
READ_BEFORE = "tuned"
"""The reader of records from before `data.reader`, which had no other."""
STORED = "stored"
"""The context in which a record is validated as it stands in a store: what is wrong is refused, and nothing mended."""
YEARS = range(1970, 9999)

MAX_AU = 1.05
"""A utilization above it is above 1 by more than its noise: `au_above_one`, and no result."""

Kind = Literal["trial", "probe", "comm", "checkpoint", "device", "node"]
Status = Literal["ok", "oom", "timeout", "failed", "skipped", "interrupted"]


def _renamed(name: str, description: str | None = None) -> Any:
    """A figure that is read under its former name too."""
    return Field(None, validation_alias=AliasChoices(name, FORMER_FIGURES[name]), description=description)


class Figures(BaseModel):
    """What a record measured; null where it was not, or cannot be. Each kind of record has a class of its own."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="after")
    def _are_numbers(self, info: ValidationInfo) -> "Figures":
        """What is measured and comes out as no number is missing; a store has no such, and none beyond 64 bits."""
        for name, value in self.__dict__.items():
            if value is None or value.__class__ is str or -MAX_NUMBER <= value <= MAX_NUMBER:
                continue
            if info.context == STORED or math.isfinite(value):
                raise ValueError(f"{name}: {value!r:.24} is no figure: beyond {MAX_NUMBER:.1e}")
            self.__dict__[name] = None
        return self

    def get(self, name: str) -> Any:
        """Return a figure by its name; None where this kind of record has no such figure."""
        return getattr(self, name, None)


class RequestFigures(Figures):
    """Requests to a bucket by kind, their retries, and latencies of those that bring contents."""

    get_requests: int | None = Field(
        None,
        description="buckets: whole objects asked for, first loader block to last; null without a bucket",
    )
    range_requests: int | None = Field(None, description="buckets: parts of objects asked for, in the same window")
    head_requests: int | None = Field(None, description="buckets: sizes and digests asked for, in the same window")
    list_requests: int | None = Field(None, description="buckets: pages of names asked for, in the same window")
    put_requests: int | None = Field(None, description="buckets: objects, or parts of objects, sent in the same window")
    request_retries: int | None = Field(None, description="buckets: further tries of these requests")
    failed_requests: int | None = Field(None, description="buckets: of these requests, those that came to nothing")
    request_s_p50: float | None = Field(None, description="buckets: from asking for contents to their end, all tries")
    request_s_p99: float | None = Field(None, description="buckets: the same, 99th percentile")
    first_byte_s_p50: float | None = Field(None, description="buckets: from the last try to its answer's beginning")
    first_byte_s_p99: float | None = Field(None, description="buckets: the same, 99th percentile")


class TrialFigures(RequestFigures):
    """Figures of a trial, and of a watched loop. Means are per step of the slowest rank."""

    samples_per_s: float | None = Field(
        None, description="all ranks, over the counted windows, less what the queues lost"
    )
    tokens_per_s: float | None = Field(
        None, description="samples_per_s times the tokens of a sample; null of images and volumes"
    )
    au: float | None = Field(None, description="step time with its input in memory / step time; never clipped")
    au_error: float | None = Field(
        None, description="au may be this far off, or more: half of a 95 % interval, by the spread of single steps"
    )
    au_mlperf: float | None = Field(
        None,
        description="AU as MLPerf Storage defines it: computation over elapsed time of all steps but the first",
    )
    au_epoch: float | None = Field(
        None,
        description="cold: over the epoch from its readers' start, by the sizes of all samples and what is read ahead",
    )
    au_epoch_error: float | None = Field(
        None,
        description="au_epoch may be so far off: by what was read ahead, and by 95 % of the noise of steps; null "
        "where every step of the epoch was timed",
    )
    au_epoch_rule: str | None = Field(
        None, description="what au_epoch is of: a whole epoch | a window of one | a stream, read ahead by the kernel"
    )
    input_stall_fraction: float | None = Field(None, description="share of the step spent waiting for input")
    cpu_contention_fraction: float | None = Field(None, description="share of the step runnable but not running")
    threads_contention_fraction: float | None = Field(
        None,
        description="share of the step for which the thread that waits longest, of those that compute beside the main "
        "one, is runnable but not running; null of one thread, on CUDA and in watched loops",
    )
    io_bytes_per_s: float | None = Field(
        None, description="stored bytes consumed, all ranks, at the rate of samples_per_s"
    )
    decoded_bytes_per_s: float | None = Field(None, description="bytes of the tensors consumed, all ranks")
    storage_bytes_per_s: float | None = Field(
        None, description="bytes that came from storage, by process counters; of a bucket by its client's count"
    )
    cache_hit_fraction: float | None = Field(None, description="max(0, 1 - storage bytes / bytes read)")
    read_amplification: float | None = Field(None, description="storage bytes / bytes read, where above 1")
    delivered_bytes: int | None = Field(None, description="stored bytes delivered, first loader block to last")
    read_call_bytes: int | None = Field(None, description="asked for in read calls, in the same window")
    process_storage_bytes: int | None = Field(None, description="fetched from storage for them, in the same window")
    mount_read_bytes: int | None = Field(
        None,
        description="read from their mount or device by everyone meanwhile; of a bucket, received by the interface",
    )
    mount_counter: str | None = Field(None, description="whose counter mount_read_bytes is")
    cache_resident_before: float | None = Field(None, description="share of the trial's files in the page cache")
    cache_resident_after: float | None = Field(None, description="the same after the last step")
    cache_measured_fraction: float | None = Field(None, description="share of those files' bytes that was looked at")
    load_s: float | None = Field(None, description="waiting for the loader's next batch")
    h2d_s: float | None = Field(None, description="copying the batch to the device")
    forward_s: float | None = Field(None, description="forward pass and loss")
    backward_s: float | None = Field(None, description="backward pass, without communication that it does not hide")
    communication_s: float | None = _renamed(
        "communication_s",
        "communication not hidden behind computation; null where it is not timed",
    )
    communication_min_s: float | None = _renamed(
        "communication_min_s", "per step the least over ranks: the wire without stragglers"
    )
    gradient_copy_s: float | None = Field(
        None, description="of communication_s: DDP's copies of gradients out of its buckets, measured by themselves"
    )
    bubble_s: float | None = Field(None, description="waiting for other pipeline stages, exposed transfers included")
    bubble_fraction: float | None = Field(None, description="bubble_s over the step, of the slowest rank")
    optimizer_s: float | None = _renamed("optimizer_s", "the optimizer's step")
    other_s: float | None = Field(None, description="watched loops: the rest of the loop body, which no mark tells")
    step_s_mean: float | None = Field(None, description="a counted step, mean")
    step_s_p50: float | None = Field(None, description="a counted step, median")
    step_s_p95: float | None = Field(None, description="a counted step, 95th percentile")
    step_s_p99: float | None = Field(None, description="a counted step, 99th percentile")
    ceiling_step_s: float | None = Field(None, description="mean step with its input in memory, interleaved blocks")
    mfu: float | None = Field(
        None, description="the model's FLOPs a second over the device's stated dense peak; null where no peak is known"
    )
    mfu_causal: float | None = Field(None, description="mfu without what causal attention computes behind its mask")
    hfu: float | None = Field(None, description="mfu with the FLOPs of recomputation")
    tile_efficiency: float | None = Field(
        None,
        description="computed, not measured: useful share of tiles of 256 x 128 over the device's multiprocessors in "
        "the step's matrix products; null where either is not known",
    )
    tflops_per_device: float | None = Field(None, description="the model's TFLOP/s that a device reaches; not a peak")
    peak_tflops_per_device: float | None = Field(None, description="stated dense peak at this precision")
    parameters: int | None = Field(None, description="of the whole model")
    flops_per_sample: int | None = Field(None, description="forward and backward, without recomputation")
    flops_convention: str | None = Field(None, description="what flops_per_sample counts, in words")
    operator_flops_per_step: int | None = Field(
        None,
        description="profile torch: of all operators of a step, all ranks; those of contractions as flops_convention "
        "has them, recomputation included",
    )
    operator_bytes_per_step: int | None = Field(
        None,
        description="profile torch: operator-level bytes: what each operator of a step reads and writes, all ranks; an "
        "upper bound for memory, as caches and fused kernels keep a part away from it",
    )
    arithmetic_intensity: float | None = Field(
        None, description="operator_flops_per_step / operator_bytes_per_step, FLOPs a byte: a lower bound"
    )
    attained_flops_per_s: float | None = Field(
        None, description="operator_flops_per_step over the step with its input in memory, a device"
    )
    ridge_intensity: float | None = Field(
        None, description="FLOPs a byte from which on the device's peak is the bound: peak / memory bandwidth"
    )
    roof_flops_per_s: float | None = Field(
        None, description="what a device could reach at this intensity: min(peak, intensity x memory bandwidth)"
    )
    roof_fraction: float | None = Field(None, description="attained_flops_per_s / roof_flops_per_s")
    roof_source: str | None = Field(None, description="where peak and bandwidth are from: a probe, or as published")
    contraction_flops_fraction: float | None = Field(
        None, description="matrix products, convolutions, attention: share of operator_flops_per_step"
    )
    normalisation_flops_fraction: float | None = Field(None, description="norms, softmax and other reductions")
    element_wise_flops_fraction: float | None = Field(
        None, description="activations, sums, optimizer: share of operator_flops_per_step"
    )
    contraction_time_fraction: float | None = Field(
        None, description="share of the operators' own time, of the device: CPU time on cpu, kernels on cuda"
    )
    normalisation_time_fraction: float | None = Field(
        None, description="norms, softmax and other reductions: the same of them"
    )
    element_wise_time_fraction: float | None = Field(None, description="activations, sums, optimizer: the same of them")
    other_time_fraction: float | None = Field(None, description="copies, gathers and the rest, which compute nothing")
    weights_bytes: int | None = Field(None, description="parameters and buffers that the largest rank holds")
    gradients_bytes: int | None = Field(None, description="that the largest rank holds when the optimizer steps")
    optimizer_bytes: int | None = Field(None, description="states that the largest rank holds")
    activations_bytes: int | None = Field(None, description="most that autograd kept for backward at one time")
    wire_bytes_per_step: float | None = Field(None, description="sent by the busiest rank, by ring algorithms")
    server_bytes_per_step: float | None = Field(
        None, description="parameter servers: received and sent by the busiest server in a step of all workers"
    )
    staleness_mean: float | None = Field(
        None, description="parameter servers: updates by others between a worker's weights and its gradient of them"
    )
    staleness_max: int | None = Field(None, description="parameter servers: the most of these updates")
    samples_per_s_per_process: float | None = Field(
        None, description="parameter servers: samples_per_s over workers and servers together"
    )
    peak_memory_bytes: int | None = Field(
        None, description="device memory of the largest rank, of all its devices; its RSS on cpu"
    )
    host_memory_bytes: int | None = Field(None, description="proportional set size of all ranks and their workers")
    reserved_memory_bytes: int | None = Field(None, description="device memory that torch's allocator took at most")
    device_memory_bytes: int | None = Field(
        None, description="device memory in use at the end beyond that before, by NVML: libraries' included"
    )
    energy_j: float | None = Field(
        None, description="of all devices over the counted steps, by NVML; on cpu of the nodes' sockets, by RAPL"
    )
    energy_j_per_sample: float | None = Field(None, description="energy_j over the samples of the counted steps")
    gpu_busy_fraction: float | None = Field(
        None, description="share of the counted steps in which a kernel ran, by the driver's samples; mean of ranks"
    )
    power_capped_fraction: float | None = Field(
        None, description="share of the counted steps with clocks held back by the power limit; the worst device"
    )
    too_hot_fraction: float | None = Field(
        None, description="the same for heat, and for what the board's power supply demands; the worst device"
    )
    nvlink_bytes_per_s: float | None = Field(None, description="sent and received over NVLink; the busiest device")
    stage_s: float | None = Field(None, description="copying to a node-local folder, slowest node; null for lazy")
    stage_bytes_per_s: float | None = Field(None, description="bytes staged over stage_s, all nodes")
    break_even_epochs: float | None = Field(
        None, description="epochs after which staging has paid: in comparisons of points, null in records"
    )
    first_batch_s: float | None = Field(None, description="loader built to first batch, slowest rank")
    startup_s: float | None = Field(None, description="launch to first step, slowest rank; launcher running already")
    read_s_per_sample: float | None = Field(
        None, description="seconds a reader spends reading one sample, waiting for a core left out"
    )
    read_cpu_s_per_sample: float | None = Field(None, description="of these, seconds in which a core computed")
    decode_s_per_sample: float | None = Field(
        None, description="seconds a reader spends decoding one sample, waiting for a core left out"
    )
    collate_s_per_sample: float | None = Field(
        None, description="of these, seconds in which samples were put together to batches; null: decoded into one"
    )
    unpack_s_per_sample: float | None = Field(
        None,
        description="of these, seconds in which Parquet's row groups were decompressed and decoded; null: the format "
        "has none, or its library does not tell",
    )
    reader_busy_fraction: float | None = Field(
        None, description="share of the time that readers read or decode, waiting for a core left out"
    )
    client_thread_busy_fraction: float | None = Field(
        None, description="buckets: share of the time that the client's busiest thread computed; the busiest reader's"
    )
    worker_busy_fraction: float | None = Field(
        None,
        description="watched loops: share of the time that worker processes run or wait for a core; without any, share "
        "of its loads that the loading thread does",
    )
    foreign_cpu_cores: float | None = Field(None, description="cores that other processes kept busy meanwhile")
    final_loss: float | None = Field(None, description="of the last counted step, mean over ranks")
    skipped_steps: int | None = Field(None, description="steps that fp16's gradient scaler left out, warm-up included")
    bottleneck: Verdict | None = Field(None, description="what holds the step back: the verdict")
    cause: Cause | None = Field(None, description="what happens there, one level below the verdict: docs/causes.md")
    bottleneck_evidence: str | None = Field(None, description="the numbers that the verdict rests on, in words")
    bottleneck_remedy: str | None = Field(None, description="what would help, by the same numbers")
    preprocessing_part: PreprocessingPart | None = Field(
        None,
        description="of preprocessing: decoding and augmenting, putting batches together, passing them on",
    )
    imbalance_s: float | None = Field(None, description="per step, most that a rank waits for a slower one")
    imbalance_mean_s: float | None = Field(
        None, description="per step, what a rank waits for slower ones, mean over all"
    )
    load_mean_s: float | None = Field(None, description="per step, what a rank waits for input, mean over all")
    slowest_rank: int | None = Field(None, description="the rank that the others wait for most")
    overhead_fraction: float | None = Field(
        None,
        description="the harness's own share of the step: its clock and heartbeat on empty steps, host time with "
        "warm caches, over step_s_mean",
    )
    loader_only_samples_per_s: float | None = Field(None, description="the same loader with no model, once a session")
    storage_ceiling_bytes_per_s: float | None = Field(None, description="the same files, or path, to a plain reader")
    ceilings_record_id: str | None = Field(None, description="the record of the trial that measured these two")
    strong_efficiency: float | None = Field(None, description="of older records; `benchsuite scaling` computes it")
    weak_efficiency: float | None = Field(None, description="of older records; `benchsuite scaling` computes it")


class ProbeFigures(TrialFigures):
    """Figures of a loader alone, which is a trial without a model, and of `probe storage`: its best medians."""

    random_read_bytes_per_s: float | None = Field(None, description="probe: the best of its blocks and depths")
    random_reads_per_s: float | None = Field(None, description="probe: the same, counted in reads")
    opens_per_s: float | None = Field(None, description="probe: open and stat of empty files")
    creates_per_s: float | None = Field(None, description="probe: empty files made")
    unlinks_per_s: float | None = Field(None, description="probe: files removed")
    put_bytes_per_s: float | None = Field(
        None, description="probe of a bucket: written, the best of its sizes and depths"
    )
    puts_per_s: float | None = Field(None, description="probe of a bucket: objects written")
    listed_per_s: float | None = Field(None, description="probe of a bucket: names listed")
    client_cpu_s_per_byte: float | None = Field(
        None, description="probe of a bucket: CPU seconds of the client for a byte read, where it read fastest"
    )


class CommFigures(Figures):
    """Figures of `probe comm`: one collective, or DDP's step with its parts."""

    comm_s: float | None = Field(
        None,
        description="one collective, the slowest rank: median over samples; of op ddp_step the exchange of all "
        "gradients with nothing beside it, of the rank that waits least",
    )
    comm_s_p5: float | None = Field(None, description="5th percentile of comm_s's samples")
    comm_s_p95: float | None = Field(None, description="95th percentile of comm_s's samples")
    algbw_bytes_per_s: float | None = Field(None, description="size / comm_s, of the whole array as nccl-tests has it")
    busbw_bytes_per_s: float | None = Field(None, description="algbw x nccl-tests' factor of the collective")
    comm_messages: int | None = Field(None, description="step tables: sent by all ranks in one call, counted")
    comm_sent_bytes: int | None = Field(None, description="the same in bytes")
    forward_s: float | None = Field(None, description="forward pass and loss")
    backward_s: float | None = Field(None, description="backward pass, without communication that it does not hide")
    communication_s: float | None = _renamed(
        "communication_s",
        "communication not hidden behind computation; null where it is not timed",
    )
    communication_min_s: float | None = _renamed(
        "communication_min_s", "per step the least over ranks: the wire without stragglers"
    )
    step_s_mean: float | None = Field(None, description="a counted step, mean")
    step_s_p50: float | None = Field(None, description="a counted step, median")
    step_s_p95: float | None = Field(None, description="a counted step, 95th percentile")
    step_s_p99: float | None = Field(None, description="a counted step, 99th percentile")
    overlap_fraction: float | None = Field(None, description="DDP: 1 - exposed communication / the same exchange alone")


class CheckpointFigures(RequestFigures):
    """Figures of `probe checkpoint`: medians over checkpoints."""

    checkpoint_bytes: int | None = Field(None, description="all files of one checkpoint")
    checkpoint_write_bytes_per_s: float | None = Field(None, description="until it is durable; rank0: once gathered")
    checkpoint_read_bytes_per_s: float | None = Field(None, description="evicted before, into memory in use")
    checkpoint_blocked_s: float | None = Field(None, description="training waits for one checkpoint")
    checkpoint_durable_s: float | None = Field(None, description="from its beginning until it is flushed to storage")
    checkpoint_slowdown: float | None = Field(None, description="async: a step while it is written / a step without")
    computed_full_bytes: int | None = Field(None, description="--model: tensors of all ranks, from the model's shapes")
    computed_full_durable_s: float | None = Field(
        None, description="--model, not measured: all ranks at the rate of those here"
    )
    computed_scaled_durable_s: float | None = Field(
        None, description="--model, not measured: all ranks, each at the rate of one here"
    )


class DeviceFigures(Figures):
    """Figures of `probe device`: medians over samples."""

    gemm_fp32_tflops: float | None = Field(None, description="products of square matrices, no TF32")
    gemm_tf32_tflops: float | None = Field(None, description="the same in TF32")
    gemm_bf16_tflops: float | None = Field(None, description="the same in bf16")
    gemm_fp16_tflops: float | None = Field(None, description="the same in fp16")
    memory_bytes_per_s: float | None = Field(None, description="a copy within its memory: bytes read and written")
    h2d_bytes_per_s: float | None = Field(None, description="copies of page-locked memory to the device")
    d2h_bytes_per_s: float | None = Field(None, description="the same from the device")


class NodeFigures(DeviceFigures):
    """Figures of `probe nodes`: of a node's slowest device, its storage, and its exchanges with others."""

    storage_bytes_per_s: float | None = Field(None, description="a file of its own, from an evicted page cache")
    pair_bytes_per_s: float | None = Field(
        None, description="all_reduce between two ranks, one of another node: median over its pairs"
    )


class Record(BaseModel):
    """One attempt at a measurement: what was asked, where it ran, what came of it."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = Field(SCHEMA_VERSION, description="of the record; fields are only added after 2")
    kind: Kind = Field(description="what was measured")
    record_id: str = Field(description="unique per attempt; doubles are dropped by it")
    trial_id: str = Field(description="point x session x repeat")
    point_id: str = Field(description="digest of the resolved spec and the dataset's id")
    match_id: str | None = Field(
        None, description="the same digest without paths: what trials of other sites, nights and versions match by"
    )
    revision: str | None = Field(
        None, description="modes and workloads that measure something else than in earlier versions: `fsdp 2`"
    )
    revision_reason: str | None = Field(None, description="what they do otherwise")
    former_match_id: str | None = Field(
        None, description="match_id without these revisions: what records from before them are found by"
    )
    session: str = Field(description="the measuring campaign")
    repeat: int = Field(description="0 is the first")
    sweep: str = Field(description="the sweep's name")
    question: str | None = Field(None, description="what the sweep asks, in its author's words")
    rank_by: str | None = Field(None, description="what the choices of its sweep are ranked by; null: samples_per_s")
    status: Status = Field(description="how it ended")
    reason: str | None = Field(None, description="why it did not end well")
    caveats: list[str] = Field(default_factory=list, description="why a figure must not be trusted blindly")
    caveat_details: list[str] = Field(default_factory=list, description="the same, with the arithmetic")
    label: str = Field("", description="the point in words: what varies in its sweep")
    order: int = Field(0, description="position of the point in its sweep")
    started_at: str = Field(description="UTC, ISO 8601")
    finished_at: str = Field(description="UTC, ISO 8601")
    command: list[str] = Field(default_factory=list, description="the command line that measured it, word by word")
    wall_s: float | None = Field(None, description="from turning to the trial to its record, not yet written")
    phase: str | None = Field(None, description="the last phase reached")
    work_folder: str | None = Field(None, description="where the logs of a failed attempt lie, within the store")
    spec: dict[str, Any] = Field(description="every setting, resolved")
    dataset: dict[str, Any] | None = Field(None, description="what was read: id, samples, bytes, files")
    env: dict[str, Any] = Field(description="where it ran: host, devices, versions, settings, file systems")
    figures: SerializeAsAny[Figures]
    evidence: dict[str, float | int | str] | None = Field(None, description="the numbers that the verdict rests on")
    alternatives: list[str] | None = Field(
        None, description="VERDICT/CAUSE of those that lie near to each other, where none of them is named"
    )
    remedies: list[str] | None = Field(None, description="what would help, by the same numbers; the best first")
    gains: dict[str, dict[str, float | int | bool]] | None = Field(
        None,
        description="of these, by name: seconds of a step with it (`step_s`) and now (`now_s`), whether at best, and "
        "the workers and cores that it needs",
    )
    wall_time_s: dict[str, float] | None = Field(
        None, description="of a command under `benchsuite run`: where its time went, seconds by part"
    )
    job: str | None = Field(
        None,
        description="what `benchsuite run --name` calls the command: runs of one name and session are one job that "
        "goes on",
    )
    io_profile: dict[str, Any] | None = Field(
        None,
        description="what readers did with files, where profiled (`benchsuite.storage.observe.io_profile.profile_of`)",
    )
    traces: list[str] = Field(default_factory=list, description="files of PyTorch's profiler, within the store")
    samples_file: str | None = Field(None, description="the sidecar in the store that holds the raw samples")

    def json_line(self) -> str:
        """Return JSON in one line. Bytes of names that are no UTF-8 (`\\xff` is U+DCFF) are written as \\udcff."""
        try:
            return self.model_dump_json()
        except PydanticSerializationError:
            text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
            return re.sub("[\ud800-\udfff]", lambda found: f"\\\\u{ord(found[0]):04x}", text)

    @model_validator(mode="after")
    def _is_sound(self, info: ValidationInfo) -> "Record":
        """Whoever has a record may rely on its numbers, its moments, and the shape of what is nested."""
        if self.schema_version > SCHEMA_VERSION and info.context == STORED:
            raise ValueError(f"schema_version {self.schema_version!r:.24}: known is {SCHEMA_VERSION}")
        for name in ("repeat", "order"):
            if not 0 <= getattr(self, name) <= MAX_NUMBER:
                raise ValueError(f"{name} {getattr(self, name)!r:.24}: allowed: 0 to {MAX_NUMBER}")
        if self.wall_s is not None and not 0 <= self.wall_s <= MAX_NUMBER:
            raise ValueError(f"wall_s {self.wall_s!r}: no number of seconds")
        for name in ("started_at", "finished_at"):
            moment = datetime.fromisoformat(getattr(self, name))
            if moment.tzinfo is None or moment.year not in YEARS:
                raise ValueError(f"{name} {moment}: allowed: a moment with its offset from UTC")
        shapes.check(self.__dict__, strict=info.context == STORED)
        data = self.spec.get("data")
        if isinstance(data, dict) and data.get("source") == "storage" and "reader" not in data:
            self.spec = {**self.spec, "data": {**data, "reader": READ_BEFORE}}
        if "threads_per_rank" in self.spec and "cpu_binding" not in self.spec:  # a resolved trial
            self.spec = {**self.spec, "cpu_binding": DONE_BEFORE["cpu_binding"]}
        return self


class TrialRecord(Record):
    """One attempt at a trial, or one run of a watched loop."""

    kind: Literal["trial"] = "trial"
    figures: TrialFigures = Field(default_factory=TrialFigures)


class ProbeRecord(TrialRecord):
    """One trial of a loader alone, or one measurement of a path by `probe storage`."""

    kind: Literal["probe"] = "probe"  # type: ignore[assignment]  # all else of it is a trial's
    figures: ProbeFigures = Field(default_factory=ProbeFigures)


class CommRecord(Record):
    """One cell of `probe comm`."""

    kind: Literal["comm"] = "comm"
    figures: CommFigures = Field(default_factory=CommFigures)


class CheckpointRecord(Record):
    """One measurement by `probe checkpoint`."""

    kind: Literal["checkpoint"] = "checkpoint"
    figures: CheckpointFigures = Field(default_factory=CheckpointFigures)


class DeviceRecord(Record):
    """One device, measured by `probe device`."""

    kind: Literal["device"] = "device"
    figures: DeviceFigures = Field(default_factory=DeviceFigures)


class NodeRecord(Record):
    """One node of several, measured side by side by `probe nodes`."""

    kind: Literal["node"] = "node"
    figures: NodeFigures = Field(default_factory=NodeFigures)


RECORDS: Mapping[Kind, type[Record]] = {
    "trial": TrialRecord,
    "probe": ProbeRecord,
    "comm": CommRecord,
    "checkpoint": CheckpointRecord,
    "device": DeviceRecord,
    "node": NodeRecord,
}
FIGURES: Mapping[Kind, type[Figures]] = {
    "trial": TrialFigures,
    "probe": ProbeFigures,
    "comm": CommFigures,
    "checkpoint": CheckpointFigures,
    "device": DeviceFigures,
    "node": NodeFigures,
}


def _kind_of(value: Any) -> Any:
    """The first records named no kind: they were trials."""
    return value.get("kind", "trial") if isinstance(value, dict) else getattr(value, "kind", None)


AnyRecord = Annotated[
    Annotated[TrialRecord, Tag("trial")]
    | Annotated[ProbeRecord, Tag("probe")]
    | Annotated[CommRecord, Tag("comm")]
    | Annotated[CheckpointRecord, Tag("checkpoint")]
    | Annotated[DeviceRecord, Tag("device")]
    | Annotated[NodeRecord, Tag("node")],
    Discriminator(_kind_of),
]
"""A record of any kind, as a line of a store holds it."""
ANY_RECORD: TypeAdapter[Record] = TypeAdapter(AnyRecord)
