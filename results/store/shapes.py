"""What a record's spec, dataset and environment must be like where this program reads them.

Every key may be absent, and others may be there: newer versions, other programs and sites add their own.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict  # typing has it for pydantic from Python 3.12 on

MAX_NUMBER = 2**63 - 1
"""The largest count or figure: neither DuckDB nor Parquet holds larger integers, and sums of floats stay finite."""
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)] | None
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None
Some = Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None
Ranks = Annotated[int, Field(ge=1, le=2**31)] | None
Text = str | None
Plain = str | int | float | bool | None


class Data(TypedDict, total=False):
    """`spec.data`."""

    root: Text
    format: Text
    reader: Text
    loader: Text
    source: Text
    cache: Text
    staging: Text
    staging_dir: Text
    num_workers: Count
    prefetch_factor: Count
    shuffle_buffer: Count


class Measure(TypedDict, total=False):
    """`spec.measure`."""

    steps: Count
    warmup_steps: Count
    repeats: Count
    seed: Count
    timeout_s: Number
    profile: Text


class Degrees(TypedDict, total=False):
    """`spec.parallelism`, where it is no name."""

    dp: Ranks
    dp_replicate: Ranks
    tp: Ranks
    pp: Ranks
    cp: Ranks
    ep: Ranks
    zero: Count
    engine: Text
    schedule: Text
    microbatches: Some


class Spec(TypedDict, total=False):
    """`spec`, of records of all kinds."""

    workload: Text
    variant: Text
    device: Text
    precision: Text
    node: Text
    optimizer: Text
    comm_hook: Text
    op: Text
    algorithm: Text
    dtype: Text
    backend: Text
    path: Text
    engine: Text
    mode: Text
    data: Data | None
    measure: Measure | None
    parallelism: str | Degrees | None
    world_size: Ranks
    nodes: Ranks
    ranks_per_node: Ranks
    threads_per_rank: Some
    grad_accum: Some
    batch_size: Some | Literal["auto"]
    global_batch_size: Some
    bucket_cap_mb: Number
    num_bytes: Count
    bucket_bytes: Count


class Dataset(TypedDict, total=False):
    """`dataset`."""

    dataset_id: Text
    format: Text
    kind: Text
    variant: Text
    num_samples: Some
    num_files: Some
    stored_bytes: Count


class Place(TypedDict, total=False):
    """`env.data` and `env.staging`."""

    file_system: Text
    server_cache: Text
    mount: Text
    free_bytes: Count


class Moment(TypedDict, total=False):
    """`env.moment`."""

    load_average_5min: Number
    cpu_mhz: Number
    cpu_limit_mhz: Number
    cpu_throttled: Number
    cpu_throttled_meanwhile: Number
    memory_available_bytes: Number
    memory_limit_bytes: Number
    users: list[str] | None


class Env(TypedDict, total=False):
    """`env`, and the facts of each of its nodes."""

    host: Text
    cpu: Text
    os: Text
    python: Text
    benchsuite: Text
    commit: Text
    launcher: Text
    cores: Some
    memory_bytes: Number
    load_average: Number
    devices: list[dict[str, Any] | str] | None
    libraries: dict[str, Plain]
    scheduler: dict[str, Plain]
    data: Place | None
    staging: Place | None
    moment: Moment | None
    nodes: "list[Node] | None"
    planned_world_sizes: list[int] | None


class Node(TypedDict, total=False):
    """A node in `env.nodes`."""

    cores: Some
    memory_bytes: Number
    ranks: list[int] | None
    moment: Moment | None
    facts: Env


class Block(TypedDict):
    """Steps of a rank, as raw samples have them: seconds by part."""

    kind: str
    start_s: float
    parts: dict[str, list[float]]


class RankSteps(TypedDict):
    """A rank in raw samples of a trial."""

    rank: int
    blocks: list[Block]


class Steps(TypedDict):
    """Raw samples of a trial."""

    ranks: list[RankSteps]


DEVICE_FIGURES = ("power_w", "sm_mhz", "temperature_c", "busy_fraction")
"""What is read of a device once a second."""


class DeviceSamples(TypedDict):
    """What one device did over a trial, from launch to end, in its raw samples; None where it did not say."""

    device_uuid: str
    at_s: list[float]
    """Moments by the clock of the blocks."""
    power_w: list[Number]
    sm_mhz: list[Number]
    temperature_c: list[Number]
    busy_fraction: list[Number]
    """Share of the last second, at most, in which a kernel ran, by the driver."""


class Nested(TypedDict, total=False):
    """The nested fields of a record."""

    spec: Spec
    dataset: Dataset | None
    env: Env


for _shape in (
    Data,
    Measure,
    Degrees,
    Spec,
    Dataset,
    Place,
    Moment,
    Env,
    Node,
    Block,
    RankSteps,
    Steps,
    DeviceSamples,
    Nested,
):
    setattr(_shape, "__pydantic_config__", ConfigDict(extra="allow"))  # noqa: B010 - no attribute that mypy knows
NESTED = TypeAdapter(Nested)
STEPS = TypeAdapter(Steps)
DEVICES = TypeAdapter(list[DeviceSamples])


def check(fields: Mapping[str, Any], strict: bool) -> None:
    """Refuse what this program would trip on; `strict`: as JSON has it, where text is no number.

    Raises:
        ValueError: with where it stands.
    """
    NESTED.validator.validate_python(fields, strict=strict)
    for name in ("spec", "dataset", "env"):
        dotted = [key for key in fields[name] or () if "." in key]
        if dotted:
            raise ValueError(f"{name}.{dotted[0]}: no key has a dot, which names what lies below a key")


def are_steps(samples: Mapping[str, Any]) -> bool:
    """Whether raw samples are those of a trial's steps: of each rank blocks, whose parts have all steps each."""
    try:
        found = STEPS.validate_python(samples)
    except ValueError:
        return False
    blocks = [block for rank in found["ranks"] for block in rank["blocks"]]
    seconds = [value for block in blocks for part in block["parts"].values() for value in part]
    moments = [block["start_s"] for block in blocks]
    alike = all(len({*map(len, block["parts"].values())}) <= 1 for block in blocks)
    return alike and all(-MAX_NUMBER <= value <= MAX_NUMBER for value in (*seconds, *moments))


def devices_of(samples: Mapping[str, Any]) -> list[DeviceSamples]:
    """What devices did over a trial, by its raw samples; empty where these have nothing of it, or what is none."""
    try:
        found = DEVICES.validate_python(samples.get("devices", []))
    except ValueError:
        return []
    alike = all(len({len(one["at_s"]), *(len(one[name]) for name in DEVICE_FIGURES)}) == 1 for one in found)  # type: ignore[literal-required]
    return [one for one in found if one["at_s"]] if alike else []
