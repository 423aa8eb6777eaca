"""HDF5 files that users have: encoded images, a group per volume, and BERT's samples as NVIDIA stores them.

Links, external storage and virtual datasets are not followed: they lead to other files.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.fields import MLM_SHAPES
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.token_samples import kept_params, mlm_bytes
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.hdf5 import own_dataset
from benchsuite.storage.sources.images import image_sample
from benchsuite.storage.sources.sequences import mlm_sample
from benchsuite.storage.sources.source import Keys, Request, Source, clean_key, nothing, sample_key, total_size, whole
from benchsuite.storage.sources.volumes import BYTES_PER_VOXEL, PAIRS, volume_sample

IMAGES, LABELS = ("images", "image", "data"), ("labels", "label")
BLOCK_ROWS = 1024
_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, IndexError)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    with told(f"{path}: not a whole HDF5 file", *_ERRORS):
        file = h5py.File(path, "r")
    try:
        yield file
    finally:
        file.close()


def _dataset(group: Any, names: tuple[str, ...], path: Path) -> Any | None:
    """The first dataset of a group with one of these names; None where there is none."""
    import h5py

    with told(f"{path}: {group.name}", *_ERRORS):
        for name in names:
            if name in group and isinstance(found := own_dataset(group, name), h5py.Dataset):
                return found
    return None


def open_images(paths: list[Path], request: Request) -> Source:
    """Encoded images in a dataset of byte strings of any length, and labels.

    Raises:
        DatasetError: damaged files, decoded images, or no labels.
    """
    counts = []
    for path in paths:
        with _opened(path) as file:
            counts.append(len(_image_datasets(file, path, request)[0]))
    return Source(sum(counts), total_size(paths), whole(_image_makers(paths, request), request.skips))


def _image_datasets(file: Any, path: Path, request: Request) -> tuple[Any, Any]:
    """A file's datasets of images and of labels, once they are found to be such as are read."""
    images, labels = _dataset(file, IMAGES, path), _dataset(file, LABELS, path)
    if images is None:
        raise nothing(path, request.kind, f"a dataset {', '.join(IMAGES)} of encoded images in the HDF5 file")
    if labels is None:
        raise DatasetError(f"{path}: no dataset {' or '.join(LABELS)} beside {images.name}")
    if not _is_encoded(images):
        raise DatasetError(
            f"{path}: {images.name} holds {images.dtype} of shape {images.shape}: decoded images; encoded ones (JPEG, "
            f"PNG) are needed, as byte strings of any length"
        )
    if labels.size != len(images) or labels.dtype.kind not in "iu":
        raise DatasetError(f"{path}: {labels.name}: {labels.size} values of {labels.dtype} for {len(images)} images")
    return images, labels


def _is_encoded(images: Any) -> bool:
    """Whether a dataset's elements are bytes of any length, or opaque."""
    import h5py

    return bool(images.ndim == 1) and (h5py.check_vlen_dtype(images.dtype) == np.uint8 or images.dtype.kind == "V")


def _image_makers(paths: list[Path], request: Request) -> Iterator[Callable[[], Sample]]:
    """What makes each sample, to be called before the next one is drawn."""
    row = 0
    for path in paths:
        with _opened(path) as file:
            images, labels = _image_datasets(file, path, request)
            with told(path, *_ERRORS):
                classes = np.asarray(labels[...]).reshape(-1)
            for at in range(len(images)):
                yield partial(_image_at, images, at, f"{row:08d}", int(classes[at]), path)
                row += 1


def _image_at(images: Any, at: int, key: str, label: int, path: Path) -> Sample:
    where = f"{path}: sample {at}"
    with told(where, *_ERRORS):
        value = images[at]
        is_opaque = images.dtype.kind == "V"
        image = bytes(value.tobytes()).rstrip(b"\0") if is_opaque else bytes(np.asarray(value, np.uint8))
    return image_sample(key, image, label, where, path)


def open_volumes(paths: list[Path], request: Request) -> Source:
    """A volume per group, at any depth, with datasets image and label, or x and y; its key is the group's path.

    Raises:
        DatasetError: damaged files, or a group with only one of the two.
    """
    groups: list[tuple[Path, str]] = []
    size = 0
    for path in paths:
        with _opened(path) as file:
            for name in _volume_groups(file, path):
                groups.append((path, name))
                size += _volume(file[name], path)[0].size * BYTES_PER_VOXEL
    if not groups:
        looked_for = " or ".join(" and ".join(pair) for pair in PAIRS)
        raise nothing(request.path, request.kind, f"HDF5 groups with datasets {looked_for}")
    keys = Keys()
    makers = (partial(_volume_at, path, name, keys) for path, name in groups)
    return Source(len(groups), size, whole(makers, request.skips))


def _volume_groups(file: Any, path: Path) -> list[str]:
    """Paths of the groups that hold a volume, or a part of one; the file's own is `/`."""
    import h5py

    names = ["/"]
    with told(path, *_ERRORS):
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Group) else None)
        return [name for name in names if any(_dataset(file[name], (part,), path) for pair in PAIRS for part in pair)]


def _volume(group: Any, path: Path) -> tuple[Any, Any]:
    """The datasets of image and label."""
    for image, label in PAIRS:
        found = _dataset(group, (image,), path), _dataset(group, (label,), path)
        if found != (None, None):
            for name, part in zip((image, label), found, strict=True):
                if part is None:
                    raise DatasetError(f"{path}: group {group.name!r}: {name} is missing")
            return found
    raise DatasetError(f"{path}: group {group.name!r} changed while it was read")


def _volume_at(path: Path, name: str, keys: Keys) -> Sample:
    where = f"{path}: group {name!r}"
    with _opened(path) as file:
        image, label = _volume(file[name], path)
        with told(where, *_ERRORS):
            arrays = np.asarray(image[...]), np.asarray(label[...])
    key = sample_key(path.name) if name == "/" else clean_key(name)
    return volume_sample(keys.take(key, where), *arrays, where, path)


def open_mlm(paths: list[Path], request: Request) -> Source:
    """BERT's pre-training samples, a row per sample in datasets named as NVIDIA's and MLPerf's tools name them.

    Raises:
        DatasetError: damaged files, missing datasets, or samples of another length than asked for.
    """
    counts = []
    for path in paths:
        with _opened(path) as file:
            counts.append(_num_rows(_mlm_datasets(file, path), path, request))
    samples = whole(_mlm_makers(paths, request), request.skips)
    return Source(sum(counts), sum(counts) * mlm_bytes(request.params), samples, kept_params(request.params))


def _mlm_datasets(file: Any, path: Path) -> dict[str, Any]:
    found = {}
    for name in MLM_SHAPES:
        stored = _dataset(file, (f"{name}s", name) if name == "next_sentence_label" else (name,), path)
        if stored is None:
            raise DatasetError(f"{path}: no dataset {name}; needed: {', '.join(MLM_SHAPES)}")
        found[name] = stored
    return found


def _num_rows(stored: dict[str, Any], path: Path, request: Request) -> int:
    count = len(stored["input_ids"]) if stored["input_ids"].ndim else 0
    for name, length in MLM_SHAPES.items():
        needed = (count, request.params[length]) if length else (count,)
        shape = stored[name].shape
        if shape != needed and not (not length and shape == (count, 1)):
            what = f"{length} {request.params[length]}" if length else f"{count} samples"
            raise DatasetError(f"{path}: {name} has shape {shape}, needed: {needed} for {what}")
    return count


def _mlm_makers(paths: list[Path], request: Request) -> Iterator[Callable[[], Sample]]:
    """What makes each sample, to be called before the next one is drawn."""
    row = 0
    for path in paths:
        with _opened(path) as file:
            stored = _mlm_datasets(file, path)
            count = _num_rows(stored, path, request)
            for start in range(0, count, BLOCK_ROWS):
                with told(f"{path}: samples from {start}", *_ERRORS):
                    block = {name: np.asarray(values[start : start + BLOCK_ROWS]) for name, values in stored.items()}
                for at in range(len(block["input_ids"])):
                    raw = {name: values[at] for name, values in block.items()}
                    yield partial(mlm_sample, f"{row:08d}", raw, request.params, f"{path}: sample {start + at}", path)
                    row += 1
