"""Words for what holds a training back: verdicts and their causes (docs/causes.md)."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

Verdict = Annotated[
    Literal[
        "storage",
        "preprocessing",
        "client_cpu",
        "waiting",
        "compute",
        "communication",
        "imbalance",
        "mixed",
        "none",
        "cannot_tell",
    ],
    BeforeValidator(lambda name: "preprocessing" if name == "client" else name),
]
Cause = Literal[
    "reads",
    "mapped_pages",
    "amplification",
    "decode",
    "collate",
    "hand_over",
    "shuffle_buffer",
    "cores",
    "affinity",
    "lock",
    "socket",
    "child_process",
    "worker_start",
    "no_shard",
    "sleep",
    "checkpoint",
    "memory",
    "slow_rank",
    "fewer_batches",
    "compute",
    "communication",
]
"""What happens where a verdict says (docs/causes.md)."""
PreprocessingPart = Literal["decode", "collate", "hand_over"]
VERDICT = ("bottleneck", "cause", "bottleneck_evidence", "bottleneck_remedy", "preprocessing_part")
"""Figures that say what holds a loop back."""
CANNOT_TELL: Verdict = "cannot_tell"
"""The verdict where what was measured bears none; the evidence is the reason."""
