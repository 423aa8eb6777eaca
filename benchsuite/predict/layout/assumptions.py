"""What a planner assumes where nothing is measured: each constant with its range and where it comes from.

The constants of matrix products, memory and launches were fitted on the A100 steps that vTrain publishes
(github.com/VIA-Research/vTrain, data/ at f8dda84: 1,081 of one node, 41 of several, layers fully recomputed, no
interleaving), their form chosen among four by Megatron's published steps too; those of attention on llm-foundry's FSDP
rows (scripts/train/benchmarking/README.md, 8c8dd48f7). Link efficiencies are NCCL's large all_reduces over the links'
rate: 0.70 to 0.76 in a node of A100, 0.92 between four.
Ranges hold what published runs of other groups and machines differ by; overlap, straggling and power are judgement.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import Z_95

Number = float | Floats


@dataclass(frozen=True)
class Range:
    """A typical value, and the bounds that 9 of 10 systems are thought to lie between."""

    typical: float
    low: float
    high: float
    about: str


RANGES: Mapping[str, Range] = {
    "matrix_efficiency": Range(0.75, 0.68, 0.82, "of peak, matrix products without end"),
    "attention_efficiency": Range(0.65, 0.4, 1.0, "of that of matrix products: scores, softmax and values"),
    "half_area": Range(2.6e5, 1.0e5, 6.0e5, "tokens x hidden / tp of a microbatch at which they reach half of that"),
    "memory_efficiency": Range(0.8, 0.7, 0.9, "of memory bandwidth"),
    "memory_passes": Range(2.2, 1.8, 2.6, "times that a layer's activations pass through memory"),
    "conv_efficiency": Range(0.14, 0.05, 0.22, "of peak, convolution networks with their input in memory"),
    "layer_launch_s": Range(0.85e-3, 0.5e-3, 1.5e-3, "least time of one pass through one layer"),
    "link_efficiency": Range(0.78, 0.6, 0.9, "bus bandwidth of large collectives over the link's, in a node"),
    "network_efficiency": Range(0.9, 0.6, 0.95, "the same between nodes"),
    "link_latency_s": Range(5e-6, 3e-6, 10e-6, "of a message in a node, where the machine states none"),
    "network_latency_s": Range(10e-6, 5e-6, 20e-6, "of a message between nodes"),
    "storage_efficiency": Range(0.8, 0.5, 0.95, "of the shared file system's stated bandwidth that one job gets"),
    "data_overlap": Range(0.3, 0.0, 0.9, "of the backward pass that gradients may hide behind"),
    "pipeline_overlap": Range(0.3, 0.0, 0.9, "of sends between stages that computation hides"),
    "optimizer_bytes": Range(30.0, 26.0, 40.0, "read and written for a parameter by an Adam step"),
    "straggling": Range(0.02, 0.0, 0.05, "of a step lost to ranks that wait for the slowest"),
    "unexplained": Range(1.0, 0.9, 1.12, "times what the forms say, as they miss published steps"),
    "power_load": Range(0.8, 0.65, 0.95, "of the stated power that training draws"),
    "host_power": Range(0.35, 0.15, 0.6, "of the devices' power drawn by their hosts, where none is stated"),
}


@dataclass(frozen=True)
class Assumptions:
    """One set for all models and machines, as in RANGES; a number, or an array of draws that broadcasts."""

    matrix_efficiency: Number
    attention_efficiency: Number
    half_area: Number
    memory_efficiency: Number
    memory_passes: Number
    conv_efficiency: Number
    layer_launch_s: Number
    link_efficiency: Number
    network_efficiency: Number
    link_latency_s: Number
    network_latency_s: Number
    storage_efficiency: Number
    data_overlap: Number
    pipeline_overlap: Number
    optimizer_bytes: Number
    straggling: Number
    unexplained: Number
    power_load: Number
    host_power: Number


TYPICAL = Assumptions(**{name: of.typical for name, of in RANGES.items()})


def drawn(count: int, seed: int = 0) -> Assumptions:
    """`count` draws as columns, so that they broadcast over candidates; the same seed gives the same.

    Each constant independently of the others: below its typical value in half of the draws, and beyond low and beyond
    high in 5 % each; normal on either side with its own width, cut at half of low and, for shares, at 1.
    """
    generator = np.random.default_rng(seed)
    return Assumptions(
        **{name: _two_sided(of, generator.standard_normal(count))[:, None] for name, of in RANGES.items()}
    )


def _two_sided(of: Range, normal: Floats) -> Floats:
    width = np.where(normal < 0, of.typical - of.low, of.high - of.typical) / Z_95
    most = 1.0 if of.high <= 1 else np.inf
    return np.clip(of.typical + width * normal, of.low / 2, most)
