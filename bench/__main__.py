"""Run the benchmarks and print each claim with its goal: all of them, or the sections named as arguments.

A section is a file, bench/SECTION.py, whose `show` measures and prints. It leaves what it printed in
bench/results/SECTION.json, which the documentation shows.
IMAGENET_SAMPLE=DIR adds real photographs to compare with, PUBLISHED_TABLES=FILE published measurements to predict.
"""

import importlib
import sys
import tempfile
from pathlib import Path

from bench.tables import kept
from benchsuite.contract.errors import nearest

SECTIONS = {
    "steps": "step time of a trial over the shortest plain PyTorch loop",
    "watch": "step time of a loop in `benchsuite.watch` over the same loop without",
    "run": "step time of a training below `benchsuite run` over the same without, and what it takes to start",
    "models": "steps of the tiny models over those of transformers and MONAI",
    "gpu": "utilization and images/s of the reference variants on a CUDA device",
    "planned": "planned steps and memory beside trials on a CUDA device",
    "startup": "seconds that a trial takes beyond its steps, and `--help`",
    "photographs": "size and decoding of generated photographs beside real ones",
    "au": "utilization of emulated devices beside a truth by arithmetic; all combinations with --full",
    "real": "utilization of real steps on the CPU beside paced readers",
    "generation": "writing of generated volumes over the disk's own streaming speed",
    "stock": "`data.reader: stock` over the plainest script with the same library",
    "epochs": "utilization of an epoch, by `measure.epochs: 1` and by cold windows, beside whole epochs",
    "causes": "causes of loops and trials that others have made",
    "remedies": "advised remedies, applied, beside what they promise",
    "sessions": "how far ten sessions of one point differ",
    "loaders": "every format and loader over preadv and over the plainest use of its library",
    "sequences": "the same for the token sequences of language models",
    "jpegs": "loading of photographs over decoding and augmenting them in memory",
    "volumes": "loading of cold volumes over preadv",
    "dlio": "our loaders over DLIO",
    "profile": "CPU time of a loader with `--profile io` over that without",
    "probe": "reads of `probe storage` over fio's",
    "staging": "utilization from a throttled shared disk and from node-local copies",
    "gate": "false alarms and found steps of the nightly gate, by simulation",
    "nights": "false alarms of the nightly gate on sessions of this machine",
    "screens": "false accusations and found nodes of screens, by simulation",
    "site": "fourteen nights of a site with asv, from a wheel",
    "plan": "a plan of 100,000 trials",
    "store": "a store of a million records",
    "report": "`report` and its HTML page",
    "predict": "`predict` beside rulers, on published and simulated series",
    "plans": "the planner beside published training steps",
    "comm": "`probe comm` over shaped links beside the theory of their wire",
    "links": "eight nodes predicted from fewer, over shaped links",
    "objects": "clients of object stores beside each other",
}
OPTIONS = {"--full"}


def main(arguments: list[str]) -> None:
    """Print every figure, side by side with what it is compared to."""
    names = [word for word in arguments if not word.startswith("-")]
    options = [word for word in arguments if word.startswith("-")]
    if "--help" in options:
        print("\n".join([str(__doc__), *(f"{name:<12} {text}" for name, text in SECTIONS.items())]))
        return
    refuse_unknown(names, options)
    for name in names or SECTIONS:
        section = importlib.import_module(f"bench.{name}")
        with tempfile.TemporaryDirectory(prefix="benchsuite-bench-") as folder, kept(name, " ".join(options)):
            section.show(Path(folder))


def refuse_unknown(names: list[str], options: list[str]) -> None:
    """End with one line where a section or an option is not known."""
    for name in names:
        if name not in SECTIONS:
            sys.exit(f"error: no section {name!r}{nearest(name, SECTIONS)}")
    for option in options:
        if option == "--real":
            sys.exit("error: what --real measured is the section 'real'")
        if option not in OPTIONS:
            sys.exit(f"error: no option {option!r}; allowed: --full, --help")


if __name__ == "__main__":
    main(sys.argv[1:])
