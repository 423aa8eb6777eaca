"""How many samples a dataset needs, so that no memory can hold it and every accelerator has its steps."""

from dataclasses import dataclass

from benchsuite.results.report.mlperf import MIN_MEMORIES, MIN_STEPS
from benchsuite.storage.dataset.sizes import in_units


@dataclass(frozen=True)
class Sizing:
    """MLPerf Storage's rule: max(5 x memory of all hosts / sample, 500 steps x batch x accelerators)."""

    accelerators: int
    batch_size: int
    sample_bytes: float
    memory_bytes: int
    """Memory of one host."""
    hosts: int = 1

    @property
    def for_memory(self) -> int:
        return -int(-MIN_MEMORIES * self.memory_bytes * self.hosts // self.sample_bytes)

    @property
    def for_steps(self) -> int:
        return MIN_STEPS * self.batch_size * self.accelerators

    @property
    def samples(self) -> int:
        """The larger of both."""
        return max(self.for_memory, self.for_steps)

    def __str__(self) -> str:
        hosts = f"{self.hosts} x " if self.hosts > 1 else ""
        return (
            f"{self.samples} samples, {in_units(self.samples * self.sample_bytes)} = max({MIN_MEMORIES} x {hosts}"
            f"{in_units(self.memory_bytes)} of memory / {in_units(self.sample_bytes)} = {self.for_memory}, "
            f"{MIN_STEPS} steps x batch {self.batch_size} x {self.accelerators} accelerators = {self.for_steps})"
        )
