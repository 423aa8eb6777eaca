"""(d) Generated photographs beside real ones: size and decode time per megapixel, in one run."""

import os
import time
from pathlib import Path

import numpy as np
import simplejpeg

from bench.tables import goal
from benchsuite.storage.create.photos import photograph

MAX_DIFFERENCE = 0.15
NUM_GENERATED = 300
ROUNDS = 9


def decode_ms_per_megapixel(images: list[bytes]) -> float:
    """Milliseconds to decode a megapixel, over all images once."""
    pixels = 0
    start = time.perf_counter()
    for image in images:
        decoded = simplejpeg.decode_jpeg(image, "RGB")
        pixels += decoded.shape[0] * decoded.shape[1]
    return (time.perf_counter() - start) / pixels * 1e9


def compare(sample: Path) -> dict[str, float]:
    """Mean bytes of both, and the ratio of decode times, median over interleaved rounds."""
    real = [path.read_bytes() for path in sorted(sample.iterdir()) if path.suffix.lower() in (".jpg", ".jpeg")]
    made = [photograph(0, index) for index in range(NUM_GENERATED)]
    rounds = [(decode_ms_per_megapixel(made), decode_ms_per_megapixel(real)) for _ in range(ROUNDS)]
    return {
        "generated_mean_bytes": float(np.mean([len(image) for image in made])),
        "real_mean_bytes": float(np.mean([len(image) for image in real])),
        "generated_ms_per_mp": float(np.median([ours for ours, _ in rounds])),
        "real_ms_per_mp": float(np.median([theirs for _, theirs in rounds])),
        "decode_ratio": float(np.median([ours / theirs for ours, theirs in rounds])),
    }


def show(folder: Path) -> None:
    """Print both, where IMAGENET_SAMPLE names a folder of real ones."""
    sample = os.environ.get("IMAGENET_SAMPLE")
    if not sample:
        print("(d) generated against real photographs: not run; give a folder of ImageNet JPEGs as IMAGENET_SAMPLE=DIR")
        return
    found = compare(Path(sample))
    print(
        f"(d) generated photographs: mean {found['generated_mean_bytes'] / 1e3:.0f} KB, decode "
        f"{found['generated_ms_per_mp']:.2f} ms/MP; real: {found['real_mean_bytes'] / 1e3:.0f} KB, "
        f"{found['real_ms_per_mp']:.2f} ms/MP; ratio {found['decode_ratio']:.3f}"
    )
    print(goal(abs(found["decode_ratio"] - 1) <= MAX_DIFFERENCE, f"within {MAX_DIFFERENCE:.0%}"))
