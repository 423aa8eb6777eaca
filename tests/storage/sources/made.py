"""Converting what a test wrote as its user would, and the parts that such files are made of."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.sources import ReadOptions
from benchsuite.storage.sources.skips import max_errors
from benchsuite.workloads.facts import FACTS


def converted(
    source: Path, workload: str, form: str = "files", tokenizer: str | None = None, most: str | None = None
) -> Dataset:
    """A verified dataset made of the source, beside it; `most`: how much of it may be left out."""
    spec = FACTS[workload]
    target = source.parent / f"{source.name}-{form}-set"
    convert_dataset(
        source,
        target,
        Wanted(workload, "tiny", form, kind=spec.kind, params=spec.variants["tiny"].sample),
        options=ReadOptions(tokenizer, max_errors=None if most is None else max_errors(most)),
    )
    return verify_dataset(target)


def images(source: Path, form: str = "files") -> dict[str, tuple[bytes, int]]:
    """Content and class of every image, by key, after conversion."""
    return {
        sample.key: (bytes(sample.fields["image"]), int(bytes(sample.fields["label"])))
        for sample in in_order(converted(source, "resnet50", form))
    }


def arrays(source: Path, workload: str, form: str = "files", tokenizer: str | None = None) -> dict[str, dict]:
    """The arrays of every sample, by key, after conversion."""
    return {
        sample.key: {name: np.array(value) for name, value in sample.fields.items()}
        for sample in in_order(converted(source, workload, form, tokenizer))
    }


def refusal(source: Path, workload: str, tokenizer: str | None = None) -> str:
    """The one line that a conversion is refused with; nothing may be left of its target."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(DatasetError) as raised:
        converted(source, workload, tokenizer=tokenizer)
    assert "\n" not in str(raised.value)
    assert sorted(source.parent.iterdir()) == before
    return str(raised.value)


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def volume(seed: int, shape: tuple[int, ...] = (33, 34, 35)) -> tuple[np.ndarray, np.ndarray]:
    """An image and its label as users have them: three axes, other types than those that are stored."""
    rng = np.random.default_rng(seed)
    return rng.integers(-1000, 1000, shape, dtype=np.int16), rng.integers(0, 3, shape).astype(np.int32)


def same_volume(fields: dict, image: np.ndarray, label: np.ndarray) -> bool:
    """Whether the stored fields are these arrays in the canonical types and shape."""
    shape = (1, *image.shape)
    assert (fields["image"].dtype, fields["label"].dtype) == (np.float32, np.uint8)
    assert fields["image"].shape == fields["label"].shape == shape
    return np.array_equal(fields["image"][0], image) and np.array_equal(fields["label"][0], label)
