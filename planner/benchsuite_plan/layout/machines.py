"""Machines that can be planned for, as YAML: devices, links, power and storage, each figure with its source."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator

from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.yaml_file import parse_yaml, read_yaml
from benchsuite_plan.layout.yaml_input import Part, Quantity, checked, shipped_files, told

FOLDER = "machines"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
PURE = "pure_bf16"
"""bf16 with weights of 16 bits too: the devices' peak of bf16."""
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, PURE: 2, "fp8": 2}
"""Bytes of an element that is kept or sent; with fp8 only matrix products are narrower."""
Flops = Annotated[float, Quantity("FLOP/s of one device", 1e11, 1e17, "312e12")]
DeviceBytes = Annotated[float, Quantity("bytes of one device", 1e9, 1e13, "80e9")]
MemoryRate = Annotated[float, Quantity("bytes/s of one device's memory", 1e9, 1e15, "2e12")]
LinkRate = Annotated[float, Quantity("bytes/s of one device, each way", 1e7, 1e14, "300e9")]
AdapterRate = Annotated[float, Quantity("bytes/s of one adapter, each way", 1e6, 1e13, "25e9")]
SharedRate = Annotated[float, Quantity("bytes/s that all nodes read together", 1e6, 1e14, "650e9")]
LocalRate = Annotated[float, Quantity("bytes/s of one node's own drives", 1e6, 1e13, "6e9")]
LocalBytes = Annotated[float, Quantity("bytes of one node's own drives", 1e9, 1e16, "3.2e12")]
Latency = Annotated[float, Quantity("seconds of one message", 1e-8, 1e-1, "5e-6")]
Watts = Annotated[float, Quantity("W of one device", 1, 1e4, "400")]
NodeWatts = Annotated[float, Quantity("W of one node", 10, 1e6, "6500")]


class Device(Part):
    """One accelerator."""

    name: str
    """What it is called in what is printed."""
    peak_flops: Annotated[
        dict[str, Flops], Field(min_length=1, json_schema_extra={"propertyNames": {"enum": list(PRECISIONS)}})
    ]
    """Peaks by precision, such as {bf16: 312e12}: dense (no structured sparsity), a multiply-add is two operations."""
    memory_bytes: DeviceBytes
    memory_bytes_per_s: MemoryRate
    tdp_w: Watts | None = None
    """Power at most."""
    matrix_efficiency_factor: Annotated[float, Field(gt=0, le=2)] | None = None
    """Times the planner's matrix_efficiency for such devices (assumptions.yaml), where a device is known to differ."""

    @field_validator("peak_flops", mode="before")
    @classmethod
    def _known(cls, peaks: Any) -> Any:
        if not isinstance(peaks, dict) or not peaks:
            raise told("give a peak for each precision, such as {bf16: 312e12}")
        for precision in peaks:
            if precision not in PRECISIONS:
                raise ValueError(str(refuse("peak_flops", precision, PRECISIONS)))
        return peaks


class IntraNode(Part):
    """The links between the devices of a node."""

    bytes_per_s: LinkRate
    """To all others together; data sheets often print both ways together."""
    latency_s: Latency | None = None


class InterNode(Part):
    """The network between nodes."""

    bytes_per_s: AdapterRate
    """200 Gb/s are 25e9."""
    nics: Annotated[int, Quantity("adapters of one node", 1, 64, "8")] = 1
    latency_s: Latency | None = None
    oversubscription: float | None = Field(default=None, ge=1, le=1000)
    """Oversubscription of the network above the nodes; null: not known, and planned as 1."""


class Storage(Part):
    """Where datasets lie: a file system that all nodes share, and a node's own drives (node-local)."""

    shared_read_bytes_per_s: SharedRate | None = None
    local_read_bytes_per_s: LocalRate | None = None
    """Where it is known, a plan tells what staging would bring."""
    local_write_bytes_per_s: LocalRate | None = None
    """While the dataset is copied there; null: not known, and no limit."""
    local_bytes: LocalBytes | None = None
    """Null: not known, and taken to hold the dataset."""


class Machine(Part):
    """One machine. Null means not known."""

    name: str = ""
    """Default: that of the file."""
    title: str = ""
    nodes: Annotated[int, Quantity("nodes of the machine", 1, 10_000_000, "560")] | None = None
    devices_per_node: Annotated[int, Quantity("devices of one node", 1, 1024, "8")]
    device: Device
    intra_node: IntraNode
    inter_node: InterNode
    node_max_w: NodeWatts | None = None
    """Power of a node at most, its devices included."""
    storage: Storage = Storage()
    sources: list[str] = Field(default_factory=list)
    """Documents that the figures are from, with the figures."""

    @property
    def node_bytes_per_s(self) -> float:
        """What a node can send, all adapters together, after oversubscription."""
        return self.inter_node.bytes_per_s * self.inter_node.nics / (self.inter_node.oversubscription or 1.0)

    def peak_flops(self, precision: str) -> float:
        """Dense peak of one device.

        Raises:
            UserError: none is known at this precision.
        """
        precision = "bf16" if precision == PURE else precision
        if precision not in self.device.peak_flops:
            words = list(self.device.peak_flops)
            error = refuse("--precision", precision, words)
            raise UserError(f"{error} ({self.device.name} of {self.name} has no other peak)")
        return self.device.peak_flops[precision]

    def scaled(self, network: float = 1.0, storage: float = 1.0, device: float = 1.0, links: float = 1.0) -> Self:
        """The same machine with network, storage, devices (compute and memory speed) and links in nodes x as fast."""
        peaks = {name: peak * device for name, peak in self.device.peak_flops.items()}
        rates = {name: value for name, value in self.storage.model_dump().items() if name.endswith("_per_s") and value}
        return self.changed(
            intra_node=self.intra_node.changed(bytes_per_s=self.intra_node.bytes_per_s * links),
            inter_node=self.inter_node.changed(bytes_per_s=self.inter_node.bytes_per_s * network),
            storage=self.storage.changed(**{name: value * storage for name, value in rates.items()}),
            device=self.device.changed(peak_flops=peaks, memory_bytes_per_s=self.device.memory_bytes_per_s * device),
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
    return checked(Machine, values, where)
