"""The site's and the user's file: defaults of trials, of jobs, and of where results go."""

import json
import os
import re
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from benchsuite.contract.errors import UserError, in_words, mistakes_of, several
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.contract.yaml_file import Values, flat, nested, read_yaml
from benchsuite.host.config_paths import config_paths
from benchsuite.storage.dataset.local_path import local_path
from benchsuite.storage.objects.profile import SITE_VARIABLE

BATCH = ("batch_size", "global_batch_size")
OF_CREDENTIALS = "credentials stand in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in the files of AWS_PROFILE"
_CREDENTIAL = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SLURM_GPUS, _PBS_GPUS = re.compile(r"gpu(?::[^:(]+)??(?::(\d+))?(?:\(.*\))?"), re.compile(r"\bngpus=(\d+)")

Word = Annotated[str, StringConstraints(min_length=1)]
FactName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
Command = Annotated[list[Word], Field(min_length=1)]

JobMode = Literal["sweep", "array", "per-world-size"]


class JobSpec(BaseModel):
    """What a batch job asks its scheduler for: `submit:` of a site's or user's file, and the options of `submit`."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    nodes: int | None = Field(None, ge=1, description="default: as many as the largest world size needs")
    ranks_per_node: int | None = Field(
        None, ge=1, description="of a trial; default: one for each GPU of a node, else spread over `nodes`, else 1"
    )
    cpus_per_rank: int | None = Field(None, ge=1, description="cores; default: the scheduler's")
    time: str | None = Field(None, description="the job's limit, [D-]HH:MM:SS")
    account: Word | None = None
    partition: Word | None = Field(None, description="PBS: the queue")
    qos: Word | None = Field(None, description="Slurm only")
    constraint: Word | None = Field(None, description="of the nodes; PBS: NAME=VALUE of each chunk")
    gres: Word | None = Field(None, description="of each node, such as gpu:4; PBS: NAME=VALUE, such as ngpus=4")
    options: dict[str, str | None] = Field(default_factory=dict, description="any other directive")
    mode: JobMode = Field("sweep", description="one job, an array, one per size")
    array_tasks: int = Field(4, ge=1, le=10_000, description="of mode array: sweeps that share the trials")
    max_requeues: int = Field(20, ge=0, description="how often a job that stopped early is queued again")
    launcher: Word = Field("auto", description="of the sweep")
    modules: list[Word] = Field(default_factory=list, description="`module load` each")
    container: list[Word] = Field(default_factory=list, description="words before `benchsuite`: apptainer exec IMAGE")
    setup: list[Word] = Field(default_factory=list, description="shell lines before the sweep, as they stand")

    @field_validator("container", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        return value.split() if isinstance(value, str) else value

    @field_validator("time", mode="before")
    @classmethod
    def _clock(cls, value: object) -> object:
        if isinstance(value, int) and value >= 3600:
            return _hours(value)
        if value is not None and not _TIME.fullmatch(str(value)):
            raise ValueError(f"time {value!r}: give [D-]HH:MM:SS, such as 02:00:00")
        return value

    @property
    def time_s(self) -> int | None:
        """The job's limit in seconds."""
        match = _TIME.fullmatch(self.time or "")
        if match is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs that each node is asked for, by `gres` or Slurm's option gpus-per-node; None where neither says."""
        option = self.options.get("gpus-per-node")
        asked = [*(self.gres or "").split(","), f"gpu:{option}" if option else ""]
        counts = [int(found[1] or 1) for found in map(_SLURM_GPUS.fullmatch, asked) if found]
        counts += [int(count) for count in _PBS_GPUS.findall(self.gres or "")]
        return sum(counts) or None

    @property
    def walltime(self) -> str | None:
        """The job's limit as HH:MM:SS, without days."""
        return None if self.time_s is None else _hours(self.time_s)


def _hours(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class DevicePeaks(BaseModel):
    """Dense peaks of matrix products of a device, TFLOP/s, and its memory's bandwidth.

    `half` is float16 and, unless it is given, bfloat16.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fp32: float | None = Field(None, gt=0)
    tf32: float | None = Field(None, gt=0)
    half: float | None = Field(None, gt=0)
    bf16: float | None = Field(None, gt=0)
    memory_gb_per_s: float | None = Field(None, gt=0)
    fp8: float | None = Field(None, gt=0)


class BucketSpec(BaseModel):
    """How a bucket is reached. Credentials stand in the environment or in ~/.aws."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    endpoint: str | None = Field(None, description="http:// or https:// and a host")
    region: Word | None = None
    addressing: Literal["path", "virtual"] | None = Field(
        None, description="where a bucket's name stands: in the path, which is the default, or in the host's name"
    )
    verify_tls: bool | None = Field(None, description="whether the server's certificate is verified; default: it is")

    @model_validator(mode="before")
    @classmethod
    def _no_credentials(cls, value: object) -> object:
        found = [key for key in value if _CREDENTIAL.search(str(key))] if isinstance(value, dict) else []
        if found:
            raise ValueError(f"{found[0]} is no option of a site's file: {OF_CREDENTIALS}")
        return value

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and "@" in value:
            raise ValueError(f"an endpoint with credentials: {OF_CREDENTIALS}")
        if value is not None and not re.fullmatch(r"https?://[^/\s]+/?", value):
            raise ValueError(f"{value!r}: give http://HOST or https://HOST")
        return value


class ConfigFile(BaseModel):
    """What a site's or user's file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    base: dict[str, Any] = Field(default_factory=dict, description="defaults of any field of a trial")
    store: Annotated[str, AfterValidator(local_path)] | None = Field(None, description="default store")
    submit: dict[str, Any] = Field(default_factory=dict, description="defaults of submit")
    facts: dict[FactName, Command] = Field(
        default_factory=dict, description="facts of each host for its records, by the command that writes them"
    )
    peaks: dict[Word, DevicePeaks] = Field(
        default_factory=dict, description="TFLOP/s of devices that are not known, by words of their name"
    )
    buckets: dict[Word, BucketSpec] = Field(
        default_factory=dict, description="how buckets are reached, by their names; `*`: all others"
    )


def check_values(base: Mapping[str, Any], where: str) -> None:
    """Refuse keys and values that no trial has, whatever stands in other layers.

    Raises:
        UserError: a line for each mistake, which starts with `where`.
    """
    filled: Values = {"workload": "resnet50", **base}
    if all(base.get(key) is None for key in BATCH):
        filled["batch_size"] = 1
    try:
        parse_trial(filled)
    except UserError as error:
        raise error.within(f"{where}: ") from None


def config_files(environment: Mapping[str, str] = os.environ) -> dict[Path, ConfigFile]:
    """The site's and the user's file by their paths, those that exist, lowest first.

    Raises:
        UserError: one of them has a key or value that is not allowed; naming it.
    """
    return {path: _read(path) for path in config_paths(environment)}


def _read(path: Path) -> ConfigFile:
    value = read_yaml(path)
    value = {
        key: {} if inner is None and key in ("base", "submit", "facts", "peaks", "buckets") else inner
        for key, inner in value.items()
    }
    base, job = (part if isinstance(part, dict) else {} for part in (value.get("base"), value.get("submit")))
    checks = (
        partial(_parsed, value),
        partial(check_values, nested(flat(base)), "base"),
        partial(parse_job, job, "submit: "),
    )
    if error := several(mistakes_of(*checks)):
        raise error.within(f"{path}: ")
    return _parsed(value)


def _parsed(value: Values) -> ConfigFile:
    try:
        return ConfigFile.model_validate(value)
    except ValidationError as error:
        raise UserError(*in_words(error, ConfigFile)) from None


def parse_job(value: Mapping[str, Any], where: str = "") -> JobSpec:
    """A JobSpec from plain values.

    Raises:
        UserError: a line for each mistake, with `where` before it.
    """
    try:
        return JobSpec.model_validate(dict(value))
    except ValidationError as error:
        raise UserError(*in_words(error, JobSpec)).within(where) from None


def default_store(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The store that the user's file names, else the site's; None where neither does."""
    stores = [found.store for found in config_files(environment).values() if found.store]
    return Path(stores[-1]).expanduser() if stores else None


def job_defaults(environment: Mapping[str, str] = os.environ) -> Values:
    """What the site's file and, above it, the user's say under `submit`."""
    return dict(chain.from_iterable(found.submit.items() for found in config_files(environment).values()))


def site_facts(environment: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """The commands that the site's file and, above it, the user's name under `facts`, by the name of their fact.

    The first line that a command writes, which is given word by word, is a fact of the host that it runs on.
    """
    return dict(chain.from_iterable(found.facts.items() for found in config_files(environment).values()))


def buckets_variable(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the site's file and, above it, the user's say of buckets, as the variable that their clients read."""
    found: dict[str, dict[str, Any]] = {}
    for config in config_files(environment).values():
        for name, spec in config.buckets.items():
            found[name] = {**found.get(name, {}), **spec.model_dump(exclude_none=True)}
    return {SITE_VARIABLE: json.dumps(found)} if found else {}


def site_peaks(environment: Mapping[str, str] = os.environ) -> dict[str, dict[str, float | None]]:
    """TFLOP/s that the site's file and, above it, the user's give under `peaks`, by words of a device's name."""
    found = chain.from_iterable(found.peaks.items() for found in config_files(environment).values())
    return {name: peaks.model_dump(exclude_unset=True) for name, peaks in found}
