"""Token sequences of every format x loader: the table of `loaders` for the samples of language models."""

from functools import partial
from pathlib import Path

from bench.loaders import measure, table_lines
from bench.scenes import FORMATS, Scene, make_one
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.workloads.facts import FACTS

SEQUENCES, WORKERS = 4096, 2


def make_sequences(folder: Path, workload: str, variant: str, samples: int) -> dict[str, Dataset]:
    """Sequences of a workload in every format that holds such."""
    spec = FACTS[workload]
    names = [*FORMATS, *(["tokens"] if spec.kind == "tokens" else [])]
    made = partial(make_one, folder, workload, spec.kind, spec.variants[variant].sample, samples)
    return {name: made(name, {}, variant) for name in names}


def sequence_scene(folder: Path, workload: str, variant: str, samples: int, batch: int, workers: int) -> Scene:
    """BERT's samples, or windows of GPT-NeoX."""
    spec = FACTS[workload]
    datasets = make_sequences(folder, workload, variant, samples)
    params = dict(spec.variants[variant].sample)
    size = datasets["files"].manifest.stored_bytes / samples / 1e3
    title = f"{workload} {variant}, {samples} samples of {params['seq_len']} tokens, {size:.1f} KB"
    return Scene(title, datasets, load(KINDS, spec.kind), params, batch, workers)


def show(folder: Path) -> None:
    """Print the tables of BERT's samples and of GPT's, which DALI does not decode."""
    scenes = (
        sequence_scene(folder / "bert", "bert", "reference", SEQUENCES, 32, WORKERS),
        sequence_scene(folder / "gpt", "gpt_neox", "reference", SEQUENCES, 16, WORKERS),
    )
    print("\n\n".join("\n".join(table_lines(scene, measure(scene, ("torch", "threads")))) for scene in scenes))
