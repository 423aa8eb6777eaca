"""(d) Generated photographs beside real ones: size and decode time per megapixel, in one run."""

import time
from pathlib import Path

import numpy as np
import simplejpeg

from benchsuite.storage.create.photos import photograph

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
