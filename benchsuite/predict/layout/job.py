"""What is to be planned: a model, a machine, and how much is trained."""

from dataclasses import dataclass

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.layout.machines import ELEMENT_BYTES, PRECISIONS, Machine
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


def checked_precision(machine: Machine, asked: str | None) -> str:
    """The precision asked for; else bf16 where the device has a peak of it, else fp16, else what it has.

    Raises:
        UserError: there is no such precision, or the device has no peak of it.
    """
    peaks = machine.device.peak_flops
    precision = asked or next((name for name in ("bf16", "fp16") if name in peaks), next(iter(peaks)))
    if precision not in PRECISIONS:
        raise refuse("--precision", precision, PRECISIONS)
    machine.peak_flops(precision)
    return precision


def samples_of(model: Model, tokens: float | None, samples: float | None) -> float | None:
    """Samples of the whole training: as asked, else as published; None where neither is known."""
    if tokens is not None and samples is not None:
        raise UserError("--tokens and --samples are both given; give one")
    if samples is not None:
        return samples
    if tokens is not None and not model.shaped:
        raise UserError(f"--tokens: samples of {model.name} ({model.kind}) have no tokens; give --samples")
    tokens = tokens or model.published_tokens
    return model.published_samples if tokens is None else tokens / model.tokens
