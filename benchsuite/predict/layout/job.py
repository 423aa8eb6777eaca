"""What is to be planned: a model, a machine, and how much is trained."""

from dataclasses import dataclass

from benchsuite.predict.layout.machines import ELEMENT_BYTES, Machine
from benchsuite.predict.layout.models import Model


@dataclass(frozen=True)
class Job:
    """What is to be trained, where, and how far; samples a step in `batch`."""

    model: Model
    machine: Machine
    devices: int
    batch: int
    precision: str = "bf16"
    sequence_parallel: bool = True
    flash_attention: bool = True
    staged: bool = False
    """Input is read from copies on the nodes' own drives, not from the shared file system."""

    @property
    def element_bytes(self) -> int:
        """Of activations and gradients as they are sent."""
        return ELEMENT_BYTES[self.precision]

    @property
    def peak_flops(self) -> float:
        """Of one device at the job's precision."""
        return self.machine.peak_flops(self.precision)

    @property
    def nodes(self) -> int:
        """Nodes that the devices fill, the last one perhaps not."""
        return -(-self.devices // self.machine.devices_per_node)
