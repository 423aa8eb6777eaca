"""Run the benchmarks and print each claim with its goal: all of them, or the sections named as arguments.

IMAGENET_SAMPLE=DIR adds real photographs to compare with. `--write` puts the tables of `loaders` into BENCHMARKS.md.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bench import gpu, loaders, models, photographs, startup, steps, writing
from storage.convert import generate_dataset

MAX_STEP_RATIO = 1.02
MAX_TRIAL_COST_S = 0.5
MAX_HELP_S = 0.3
MAX_MODEL_RATIO = 1.0
MAX_DECODE_DIFFERENCE = 0.15
MIN_WRITE_RATIO = 0.5


def goal(met: bool, text: str) -> str:
    """A goal and whether it was met."""
    return f"   goal: {text}: {'met' if met else 'MISSED'}"


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"median {np.median(values):.3f} s ({min(values):.3f}..{max(values):.3f}, n={len(values)})"


def main(arguments: list[str]) -> None:
    """Print every figure, side by side with what it is compared to."""
    sections: dict[str, Callable[[Path], None]] = {
        "steps": print_steps,
        "models": print_models,
        "gpu": print_gpu,
        "startup": print_startup,
        "photographs": print_photographs,
        "generation": print_generation,
        "loaders": print_loaders,
    }
    asked = [name for name in arguments if not name.startswith("-")]
    unknown = [name for name in asked if name not in sections]
    if unknown:
        sys.exit(f"error: no section {unknown[0]!r}; allowed: {', '.join(sections)}")
    for name in asked or sections:
        with tempfile.TemporaryDirectory(prefix="benchsuite-bench-") as folder:
            sections[name](Path(folder))


def photographs_in(folder: Path) -> Path:
    """A small dataset of files."""
    generate_dataset(folder / "files", "resnet50", "tiny", "files", 256)
    return folder / "files"


def print_steps(folder: Path) -> None:
    """(a)"""
    ratios, direct_us, step_ms = steps.measure(photographs_in(folder))
    print(f"(a) step time of a trial over the shortest plain PyTorch loop (plain step {step_ms:.1f} ms, 1 thread)")
    for name, ratio in ratios.items():
        print(f"    {name}: {ratio}")
        if name.startswith("trial"):
            print(goal(ratio.low <= MAX_STEP_RATIO, f"lower bound <= {MAX_STEP_RATIO}"))
    print(f"    direct cost of clock, counters and heartbeat: {direct_us:.1f} us a step")


def print_models(_folder: Path) -> None:
    """(g)"""
    print("(g) a step of each tiny model over the same model's by transformers or MONAI, float32, 1 thread")
    for name, (ratio, ours_ms) in models.measure().items():
        print(f"    {name}: {ratio} (ours {ours_ms:.0f} ms)")
        print(goal(ratio.low <= MAX_MODEL_RATIO, f"<= {MAX_MODEL_RATIO}, within its interval"))


def print_gpu(_folder: Path) -> None:
    """(h)"""
    if not torch.cuda.is_available():
        print("(h) reference variants on a CUDA device: not run; torch sees none")
        return
    print(f"(h) reference variants on {torch.cuda.get_device_name()}, bfloat16, compiled, synthetic samples")
    for name, wanted in gpu.GOALS.items():
        found = gpu.trial(wanted.spec)
        value = getattr(found, wanted.figure)
        print(
            f"    {name}: {wanted.figure} {value:.3g}, {found.samples_per_s:,.1f} samples/s, {found.step_s_mean:.4f} s"
        )
        print(goal(value is not None and value >= wanted.least, f"{wanted.figure} >= {wanted.least}"))
    ratio, seconds = gpu.unet3d_ratio()
    print(f"    UNet3D 128^3 step over the plainest loop's: {ratio:.3f} ({seconds:.4f} s)")
    print(goal(ratio <= MAX_STEP_RATIO, f"<= {MAX_STEP_RATIO}"))


def print_startup(folder: Path) -> None:
    """(b) and (c)"""
    photographs_in(folder)
    print("(b) a 2-rank tiny trial beyond its own steps, the sweep under way")
    for source, costs in startup.trial_costs(folder, folder).items():
        print(f"    source {source}: {spread(costs)}")
        print(goal(float(np.median(costs)) <= MAX_TRIAL_COST_S, f"<= {MAX_TRIAL_COST_S} s"))
    print(f"    torchrun, 2 ranks, gloo group, one barrier: {spread(startup.torchrun_starts(folder))}")
    times = startup.help_times()
    print(f"(c) benchsuite --help: {spread(times)}")
    print(goal(float(np.median(times)) <= MAX_HELP_S, f"<= {MAX_HELP_S} s"))


def print_photographs(folder: Path) -> None:
    """(d)"""
    sample = os.environ.get("IMAGENET_SAMPLE")
    if not sample:
        print("(d) generated against real photographs: not run; give a folder of ImageNet JPEGs as IMAGENET_SAMPLE=DIR")
        return
    found = photographs.compare(Path(sample))
    print(
        f"(d) generated photographs: mean {found['generated_mean_bytes'] / 1e3:.0f} KB, decode "
        f"{found['generated_ms_per_mp']:.2f} ms/MP; real: {found['real_mean_bytes'] / 1e3:.0f} KB, "
        f"{found['real_ms_per_mp']:.2f} ms/MP; ratio {found['decode_ratio']:.3f}"
    )
    print(goal(abs(found["decode_ratio"] - 1) <= MAX_DECODE_DIFFERENCE, f"within {MAX_DECODE_DIFFERENCE:.0%}"))


def print_generation(folder: Path) -> None:
    """(e)"""
    print("(e) writing volumes beside the disk's own streaming speed, both flushed to the disk")
    for name, ratio in writing.measure(folder).items():
        print(f"    {name}: {ratio.ours / 1e6:,.0f} MB/s, disk {ratio.disk / 1e6:,.0f} MB/s, ratio {ratio.ratio:.2f}")
        print(goal(ratio.ratio >= MIN_WRITE_RATIO, f">= {MIN_WRITE_RATIO}"))


def print_loaders(folder: Path) -> None:
    """(f)"""
    text = loaders.report(folder, workers=2)
    print(text)
    if "--write" in sys.argv:
        loaders.write_into(Path("BENCHMARKS.md"), text)


if __name__ == "__main__":
    main(sys.argv[1:])
