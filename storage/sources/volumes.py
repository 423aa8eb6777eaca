"""Volumes that users have as files: pairs of .npy, .npz, and NIfTI as KiTS19 and the Medical Decathlon lay it out."""

import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchsuite.storage.dataset.problems import Problems
from benchsuite.storage.dataset.sample import Array, Sample, fresh, read_whole
from benchsuite.storage.errors import DatasetError, reason, told
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.files import read_npz
from benchsuite.storage.sources.skips import Skips
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    clean_key,
    entries,
    file_size,
    files_below,
    sample_key,
    whole,
    with_suffixes,
)

PAIRS = (("x", "y"), ("image", "label"))
"""What image and label of a volume are called."""
NIFTI_SUFFIXES = (".nii.gz", ".nii")
KITS, DECATHLON = ("imaging", "segmentation"), ("imagesTr", "labelsTr")
"""What image and label are called in KiTS19's layout, and what their folders are in the Medical Decathlon's."""
BYTES_PER_VOXEL = 5
MAX_LABEL = 255


def volume_sample(key: str, image: Array, label: Array, where: str, source: Path) -> Sample:
    """A volume as it is stored: image float32, label uint8, both (1, D, H, W).

    Arrays of three axes get the channel axis; the order and direction of axes stay as stored, nothing is resampled.

    Raises:
        DatasetError: image and label differ in shape, have several channels, or hold what these types cannot: numbers
            too large, whole numbers that float32 would change.
    """
    if image.shape != label.shape:
        raise DatasetError(
            f"{where}: the image has shape {image.shape}, its label {label.shape}; they must be the same"
        )
    shape = image.shape if image.ndim == 4 else (1, *image.shape)
    if len(shape) != 4 or shape[0] != 1 or not image.size:
        raise DatasetError(f"{where}: shape {image.shape}; needed: (D, H, W) or (1, D, H, W), one channel, not empty")
    if image.dtype.kind not in "biuf":
        raise DatasetError(f"{where}: the image holds {image.dtype}; needed: real numbers")
    if label.dtype.kind not in "biuf":
        raise DatasetError(f"{where}: the label holds {label.dtype}; needed: whole numbers")
    fields = {"image": _intensities(image, where).reshape(shape), "label": _labels(label, where)}
    return Sample(key, {**fields, "label": fields["label"].reshape(shape)}, source=str(source))


def _intensities(image: Array, where: str) -> Array:
    """An image as float32. Fractions are rounded; what would become another whole number or infinite is refused."""
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(image, np.float32)
    if image.dtype.kind == "f" and image.itemsize > values.itemsize:
        changed = np.isinf(values) & np.isfinite(image)
    elif image.dtype.kind in "iu" and image.itemsize >= values.itemsize:
        with np.errstate(invalid="ignore"):
            changed = values.astype(image.dtype) != image
        changed |= values >= float(np.iinfo(image.dtype).max)
    else:
        return values
    if changed.any():
        first = image[np.unravel_index(changed.argmax(), image.shape)]
        raise DatasetError(f"{where}: the image holds {first}, which float32 does not; scale it, or store float32")
    return values


def _labels(label: Array, where: str) -> Array:
    low, high = label.min(), label.max()
    if not (low >= 0 and high <= MAX_LABEL):
        raise DatasetError(f"{where}: label values from {low} to {high}; needed: whole numbers from 0 to {MAX_LABEL}")
    labels = np.ascontiguousarray(label, np.uint8)
    if label.dtype.kind == "f" and not np.array_equal(labels, label):
        raise DatasetError(f"{where}: label values that are no whole numbers")
    return labels


@dataclass(frozen=True)
class _Pair:
    """A volume's two files; a .npz is both."""

    key: str
    image: Path
    label: Path


def _open_pairs(
    pairs: list[_Pair], size: int, load: Callable[[_Pair], tuple[Array, Array]], skips: Skips | None
) -> Source:
    keys = Keys("volume")

    def sample(pair: _Pair) -> Sample:
        image, label = load(pair)
        where = str(pair.image) if pair.image == pair.label else f"{pair.image} with {pair.label.name}"
        return volume_sample(keys.take(pair.key, pair.image), image, label, where, pair.image)

    return Source(len(pairs), size, whole((partial(sample, pair) for pair in pairs), skips))


def _cases(found: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Files by their cases.

    Raises:
        DatasetError: two are of the same case.
    """
    cases: dict[str, Path] = {}
    for case, path in found:
        if case in cases:
            what = f"another channel of case {case}, beside {cases[case].name}"
            raise DatasetError(f"{path}: {what}; volumes of one channel are read")
        cases[case] = path
    return cases


def _paired(
    images: Mapping[str, Path], labels: Mapping[str, Path], names: tuple[str, str], skips: Skips | None
) -> list[_Pair]:
    """Images with their labels, by case; `names` are what both are called where `{}` is the case.

    Raises:
        DatasetError: some have no partner, all of which are told; with `skips` they are noted there.
    """
    problems = Problems() if skips is None else skips
    for case in sorted({*images} ^ {*labels}):
        lacking, name = ("label", names[1]) if case in images else ("image", names[0])
        lone = images.get(case) or labels[case]
        problems.add(DatasetError(f"{lone}: its {lacking} {name.format(case)} is missing"))
    if isinstance(problems, Problems):
        problems.tell(may_skip=True)
    keys = {case: clean_key(case if case[-1:] not in ("", "/") else f"{case}_") for case in images}
    return [_Pair(keys[case], image, labels[case]) for case, image in images.items() if case in labels]


def find_npy_pairs(path: Path, inside: list[Path]) -> list[Path]:
    """Files named as images or labels of pairs, in a folder and those below."""
    return files_below(path, [f"_{name}.npy" for pair in PAIRS for name in pair]) if path.is_dir() else []


def open_npy_pairs(paths: list[Path], request: Request) -> Source:
    """Pairs `<key>_x.npy` and `<key>_y.npy`, or `<key>_image.npy` and `<key>_label.npy`.

    Raises:
        DatasetError: a file has no partner.
    """
    pairs = []
    for names in PAIRS:
        images, labels = (
            _cases(
                (str(path.relative_to(request.path))[: -len(suffix)], path)
                for path in paths
                if path.name.lower().endswith(suffix)
            )
            for suffix in (f"_{name}.npy" for name in names)
        )
        pairs += _paired(images, labels, (f"{{}}_{names[0]}.npy", f"{{}}_{names[1]}.npy"), request.skips)
    pairs.sort(key=lambda pair: pair.image)
    return _open_pairs(pairs, sum(_npy_volume_bytes(pair.image) for pair in pairs), _load_npy, request.skips)


def _npy_volume_bytes(path: Path) -> int:
    with told(path), path.open("rb") as file:
        return _stored_bytes(file, file_size(path))


def _stored_bytes(image: IO[bytes], size: int) -> int:
    """Bytes of the volume whose image is a .npy of `size` bytes, by its header; one that is damaged counts as none.

    Reading it will tell.
    """
    try:
        return min(math.prod(npy.read_header(image)[0]), size) * BYTES_PER_VOXEL
    except Exception:  # a damaged header makes numpy raise nearly anything
        return 0


def _load_npy(pair: _Pair) -> tuple[Array, Array]:
    image, label = (npy.view(read_whole(path, "", fresh), str(path)) for path in (pair.image, pair.label))
    return image, label


def find_npz(path: Path, inside: list[Path]) -> list[Path]:
    """The .npz files of a folder and those below."""
    return files_below(path, [".npz"]) if path.is_dir() else with_suffixes(inside, ".npz")


def open_npz(paths: list[Path], request: Request) -> Source:
    """Volumes in .npz files with arrays x and y, or image and label."""
    root = request.path if request.path.is_dir() else request.path.parent
    pairs = [_Pair(sample_key(path.relative_to(root)), path, path) for path in paths]
    return _open_pairs(pairs, sum(map(_npz_volume_bytes, paths)), _load_npz, request.skips)


def _npz_volume_bytes(path: Path) -> int:
    """Bytes of the volume in a .npz once unpacked; one that is damaged counts as none."""
    file_size(path)
    damage = (KeyError, OSError, RuntimeError, NotImplementedError, ValueError, zipfile.BadZipFile)
    with suppress(*damage), zipfile.ZipFile(path) as archive:
        name = f"{_npz_names(path, archive)['image']}.npy"
        with archive.open(name) as image:
            return _stored_bytes(image, archive.getinfo(name).file_size)
    return 0


def _npz_names(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """What image and label are called in a .npz.

    Raises:
        DatasetError: one is missing.
    """
    found = [name.removesuffix(".npy") for name in archive.namelist()]
    image, label = max(PAIRS, key=lambda pair: len({*pair} & {*found}))
    for name in (image, label):
        if name not in found:
            needed = ", or ".join(" and ".join(pair) for pair in PAIRS)
            raise DatasetError(f"{path}: no array {name}; needed: {needed}; found {', '.join(found) or 'none'}")
    return {"image": image, "label": label}


def _load_npz(pair: _Pair) -> tuple[Array, Array]:
    with told(f"{pair.image}: not a whole .npz file", zipfile.BadZipFile, OSError), zipfile.ZipFile(pair.image) as file:
        names = _npz_names(pair.image, file)
    with told(pair.image, RuntimeError, NotImplementedError, ValueError, IndexError):
        arrays = read_npz(pair.image, fresh, names)
    return arrays["image"], arrays["label"]


def _nifti_stem(path: Path) -> str:
    return re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def find_kits(path: Path, inside: list[Path]) -> list[Path]:
    """Images and labels of KiTS19's layout: `imaging.nii.gz` and `segmentation.nii.gz` in a folder per case."""
    if not path.is_dir():
        return []
    return [path for path in files_below(path, NIFTI_SUFFIXES) if _nifti_stem(path).lower() in KITS]


def open_kits(paths: list[Path], request: Request) -> Source:
    """Cases of KiTS19's layout, named by their folders. Axes stay as stored.

    Raises:
        DatasetError: a case has an image and no label, or a label and no image.
    """

    def case(path: Path) -> str:
        relative = path.parent.relative_to(request.path)
        return str(relative) if relative.parts else path.parent.name

    images, labels = (
        _cases((case(path), path) for path in paths if _nifti_stem(path).lower() == name) for name in KITS
    )
    return _open_nifti(images, labels, (f"{{}}/{KITS[0]}.nii.gz", f"{{}}/{KITS[1]}.nii.gz"), request.skips)


def find_decathlon(path: Path, inside: list[Path]) -> list[Path]:
    """Images and labels of the Medical Decathlon's and nnU-Net's layout: folders imagesTr and labelsTr."""
    folders = [folder for folder in inside if folder.name in DECATHLON and folder.is_dir()]
    return [found for folder in folders for found in entries(folder) if found.name.lower().endswith(NIFTI_SUFFIXES)]


def open_decathlon(paths: list[Path], request: Request) -> Source:
    """Cases `imagesTr/<case>.nii.gz` or `<case>_0000.nii.gz` with `labelsTr/<case>.nii.gz`. Axes stay as stored.

    Raises:
        DatasetError: an image or a label has no partner, or a case has several channels.
    """
    labels = {_nifti_stem(path): path for path in paths if path.parent.name == DECATHLON[1]}
    stems = ((_nifti_stem(path), path) for path in paths if path.parent.name == DECATHLON[0])
    images = _cases((stem if stem in labels else re.sub(r"_\d{4}$", "", stem), path) for stem, path in stems)
    return _open_nifti(images, labels, (f"{DECATHLON[0]}/{{}}.nii.gz", f"{DECATHLON[1]}/{{}}.nii.gz"), request.skips)


def _open_nifti(
    images: Mapping[str, Path], labels: Mapping[str, Path], names: tuple[str, str], skips: Skips | None
) -> Source:
    pairs = _paired(images, labels, names, skips)
    return _open_pairs(pairs, sum(_nifti_volume_bytes(pair.image) for pair in pairs), _load_nifti, skips)


def _nifti_volume_bytes(path: Path) -> int:
    """Bytes of a volume by its header; one that is damaged counts as none. Reading it will tell."""
    with suppress(DatasetError):
        return int(math.prod(_nifti(path).shape)) * BYTES_PER_VOXEL
    return 0


@contextmanager
def _whole_nifti(path: Path) -> Iterator[None]:
    """Name the file where nibabel stumbles over it."""
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError, HeaderTypeError
    from nibabel.wrapstruct import WrapStructError

    damage = (ImageFileError, HeaderDataError, HeaderTypeError, WrapStructError)
    try:
        yield
    except (*damage, OSError, EOFError, ValueError, OverflowError, MemoryError, zlib.error) as error:
        raise DatasetError(f"{path}: not a whole NIfTI file: {reason(error)}") from error


def _nifti(path: Path) -> Any:
    """An image of which only the header is read."""
    import nibabel

    file_size(path)
    with _whole_nifti(path):
        return nibabel.load(path, mmap=False)


def _load_nifti(pair: _Pair) -> tuple[Array, Array]:
    arrays = []
    for path in (pair.image, pair.label):
        opened = _nifti(path)
        with _whole_nifti(path):
            arrays.append(np.asanyarray(opened.dataobj))
    return arrays[0], arrays[1]
