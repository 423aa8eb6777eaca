"""What samples each workload takes: their kind, and their parameters by variant (no torch).

Sizes are those of the references: MLPerf Training for images, volumes (of KiTS19) and BERT, MLPerf Storage for the
volumes' distribution of bytes, GPT-NeoX for its sequences and padded vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleSpec:
    """The kind of a workload's samples, and what they are made with for each variant."""

    kind: str
    variants: Mapping[str, Mapping[str, int]]


SAMPLES: Mapping[str, SampleSpec] = {
    "resnet50": SampleSpec(
        "image",
        {
            "nano": {"image_size": 32},
            "tiny": {"image_size": 64},
            "resnet18": {"image_size": 224},
            "resnet101": {"image_size": 224},
            "reference": {"image_size": 224},
        },
    ),
    "unet3d": SampleSpec(
        "volume",
        {
            "nano": {"patch_size": 16, "mean_bytes": 200_000, "stdev_bytes": 70_000},
            "tiny": {"patch_size": 32, "mean_bytes": 1_500_000, "stdev_bytes": 500_000},
            "reference": {"patch_size": 128, "mean_bytes": 146_600_628, "stdev_bytes": 68_341_808},
        },
    ),
    "bert": SampleSpec(
        "mlm",
        {
            "tiny": {"seq_len": 128, "max_predictions": 20, "vocab_size": 512},
            "base": {"seq_len": 512, "max_predictions": 76, "vocab_size": 30522},
            "reference": {"seq_len": 512, "max_predictions": 76, "vocab_size": 30522},
        },
    ),
    "gpt_neox": SampleSpec(
        "tokens",
        {
            "nano": {"seq_len": 16, "vocab_size": 128},
            "nano_moe": {"seq_len": 16, "vocab_size": 128},
            "tiny": {"seq_len": 128, "vocab_size": 512},
            "pythia-70m": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-160m": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-410m": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-1b": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-1.4b": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-2.8b": {"seq_len": 2048, "vocab_size": 50304},
            "pythia-6.9b": {"seq_len": 2048, "vocab_size": 50432},
            "moe": {"seq_len": 2048, "vocab_size": 50304},
            "reference": {"seq_len": 2048, "vocab_size": 50432},
        },
    ),
}
