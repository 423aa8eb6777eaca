"""Machines that can be planned for, as YAML: devices, links, power and storage, each figure with its source."""

from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from benchsuite.errors import UserError, one_line, refuse
from benchsuite.predict.shipped import shipped_files
from benchsuite.yamlfile import parse_yaml, read_yaml

FOLDER = "machines"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
"""Of what is kept and sent; with fp8 only matrix products are narrower."""


class Part(BaseModel):
    """A part of a machine: unknown keys are errors, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(Part):
    """One accelerator. Peaks are dense (no structured sparsity), a multiply-add is two operations."""

    name: str
    peak_flops: dict[str, PositiveFloat]
    memory_bytes: PositiveFloat
    memory_bytes_per_s: PositiveFloat
    tdp_w: PositiveFloat | None = None
    matrix_efficiency_factor: PositiveFloat | None = None
    """Times the planner's matrix_efficiency, which was fitted on A100, where published steps show that it differs."""

    @field_validator("peak_flops")
    @classmethod
    def _known(cls, peaks: dict[str, float]) -> dict[str, float]:
        for precision in peaks:
            if precision not in PRECISIONS:
                raise ValueError(str(refuse("peak_flops", precision, PRECISIONS)))
        return peaks


class IntraNode(Part):
    """The links between the devices of a node: bytes per second of one device, each way, to all others together."""

    bytes_per_s: PositiveFloat
    latency_s: PositiveFloat | None = None


class InterNode(Part):
    """The network: bytes per second of one adapter, each way; how many a node has."""

    bytes_per_s: PositiveFloat
    nics: PositiveInt = 1
    latency_s: PositiveFloat | None = None
    oversubscription: float | None = Field(default=None, ge=1)
    """Of the network above the nodes; None: not known, and planned as 1."""


class Storage(Part):
    """Read bandwidth of the shared file system (all nodes together) and of a node's own drives."""

    shared_read_bytes_per_s: PositiveFloat | None = None
    local_read_bytes_per_s: PositiveFloat | None = None


class Machine(Part):
    """One machine. None means not known."""

    name: str
    title: str = ""
    nodes: PositiveInt | None = None
    devices_per_node: PositiveInt
    device: Device
    intra_node: IntraNode
    inter_node: InterNode
    node_max_w: PositiveFloat | None = None
    storage: Storage = Storage()
    sources: list[str] = []

    @property
    def node_bytes_per_s(self) -> float:
        """What a node can send, all adapters together, after oversubscription."""
        return self.inter_node.bytes_per_s * self.inter_node.nics / (self.inter_node.oversubscription or 1.0)

    def peak_flops(self, precision: str) -> float:
        """Dense peak of one device.

        Raises:
            UserError: none is known at this precision.
        """
        if precision not in self.device.peak_flops:
            words = list(self.device.peak_flops)
            error = refuse("--precision", precision, words)
            raise UserError(f"{error} ({self.device.name} of {self.name} has no other peak)")
        return self.device.peak_flops[precision]

    def scaled(self, network: float = 1.0, storage: float = 1.0, device: float = 1.0) -> Self:
        """The same machine with a network between nodes, a storage and devices (compute and memory speed) x as fast."""
        inter = self.inter_node.model_copy(update={"bytes_per_s": self.inter_node.bytes_per_s * network})
        peaks = {name: peak * device for name, peak in self.device.peak_flops.items()}
        memory = self.device.memory_bytes_per_s * device
        own = {key: None if value is None else value * storage for key, value in self.storage.model_dump().items()}
        return self.model_copy(
            update={
                "inter_node": inter,
                "storage": Storage(**own),
                "device": self.device.model_copy(update={"peak_flops": peaks, "memory_bytes_per_s": memory}),
            }
        )


def names() -> list[str]:
    """Every machine that comes with benchsuite."""
    return sorted(_shipped())


def load(name: str) -> Machine:
    """A machine by its name, or from one's own YAML file.

    Raises:
        UserError: no such machine or file, or a field is wrong.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        return parse({"name": path.stem} | read_yaml(path), name)
    found = _shipped()
    if name not in found:
        raise refuse("--machine", name, sorted(found))
    return found[name]


@cache
def _shipped() -> dict[str, Machine]:
    found = shipped_files(FOLDER)
    return {name: parse({"name": name} | parse_yaml(text, name), name) for name, text in found.items()}


def parse(values: dict[str, Any], where: str) -> Machine:
    """A machine from its fields.

    Raises:
        UserError: a field is unknown, missing or wrong.
    """
    try:
        return Machine.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error, Machine, {})}") from None
