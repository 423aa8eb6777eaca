"""What users have: folders of images, tars, .npy pairs, NIfTI, HDF5, LMDB, TFRecord, .bin/.idx, text.

Readers are rows of a table by sample kind. Whatever they find is read in a fixed order and one sample at a time;
nothing is unpickled or unpacked to disk. A sample with a missing part is an error; it is left out only where its user
says so, and then listed.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.sources import hdf5, images, lmdbs, sequences, tars, texts, tfrecords, volumes
from benchsuite.storage.sources.hidden import count_hidden
from benchsuite.storage.sources.labels import NO_FIELD
from benchsuite.storage.sources.skips import Skips
from benchsuite.storage.sources.source import (
    AS_IT_IS,
    Reader,
    ReadOptions,
    Request,
    Source,
    by_suffix,
    entries,
    nothing,
    packed,
    sample_key,
)

__all__ = ["AS_IT_IS", "READERS", "ReadOptions", "Source", "open_source", "sample_key", "suggested_kind"]

HDF5 = by_suffix(".h5", ".hdf5")
TARS = by_suffix(".tar", ".tgz", *packed(".tar"))
"""Compressed ones are refused when they are opened."""
_TFRECORD = ".tfrecord files"
_LABELLED = frozenset({"label_field"})
READERS: Mapping[str, tuple[Reader, ...]] = {
    "image": (
        Reader(".jpg/.jpeg/.png files", images.find_images, images.open_images, takes=_LABELLED),
        Reader(".tar files", TARS, tars.open_images, takes=_LABELLED),
        Reader(".h5/.hdf5 files", HDF5, hdf5.open_images),
        Reader("data.mdb", lmdbs.find_lmdb, lmdbs.open_images),
        Reader(_TFRECORD, tfrecords.find_tfrecords, tfrecords.open_images),
    ),
    "volume": (
        Reader("pairs *_x.npy/*_y.npy or *_image.npy/*_label.npy", volumes.find_npy_pairs, volumes.open_npy_pairs),
        Reader(".npz files", volumes.find_npz, volumes.open_npz),
        Reader("imaging.nii.gz/segmentation.nii.gz", volumes.find_kits, volumes.open_kits),
        Reader("imagesTr/labelsTr", volumes.find_decathlon, volumes.open_decathlon),
        Reader(".h5/.hdf5 files", HDF5, hdf5.open_volumes),
        Reader(_TFRECORD, tfrecords.find_tfrecords, tfrecords.open_volumes),
    ),
    "mlm": (
        Reader(".h5/.hdf5 files", HDF5, hdf5.open_mlm),
        Reader(_TFRECORD, tfrecords.find_tfrecords, tfrecords.open_mlm),
    ),
    "tokens": (
        Reader(".bin/.idx pair", sequences.find_bin, sequences.open_bin),
        Reader(".txt files", texts.find_texts, texts.open_tokens, is_last_resort=True, takes=frozenset({"tokenizer"})),
    ),
}


def open_source(path: Path, kind: str, params: Mapping[str, int], options: ReadOptions = AS_IT_IS) -> Source:
    """The samples of this kind in a file or folder.

    Raises:
        DatasetError: nothing there that could be read as such samples, several things that could, damage, or an option
            for data of another sort.
    """
    if kind not in READERS:
        raise DatasetError(f"no sample kind {kind!r}; allowed: {', '.join(READERS)}")
    path = sequences.pair_path(path) if kind == "tokens" else path
    reader, found = _reader_of(path, kind)
    _refuse_options(path, reader, options)
    skips = Skips(options.max_errors) if options.max_errors else None
    try:
        source = reader.open(found, Request(path, kind, params, options, skips))
    except DatasetError as error:
        if skips is not None and skips.reasons:
            skips.refuse(error)  # nothing may be there because all of it was left out
        raise
    if path.is_dir():
        source.notes["hidden_files"] = int(source.notes.get("hidden_files") or 0) + count_hidden(path)
    if skips is None:
        return source
    if source.count is not None:
        skips.total = source.count + len(skips.reasons)
        skips.check(skips.total)
    return replace(source, skipped=skips.reasons)


def _reader_of(path: Path, kind: str) -> tuple[Reader, list[Path]]:
    """The only reader whose data lie there, and their files.

    Raises:
        DatasetError: none fits, or several do.
    """
    inside = entries(path)
    fitting = [(reader, found) for reader in READERS[kind] if (found := reader.find(path, inside))]
    if not fitting:
        raise nothing(path, kind, ", ".join(reader.looked_for for reader in READERS[kind]))
    chosen = [pair for pair in fitting if not pair[0].is_last_resort] or fitting
    if len(chosen) > 1:
        what = " and ".join(f"{reader.looked_for} ({found[0].name})" for reader, found in chosen)
        raise DatasetError(f"{path}: holds {what}; which is the data? Give one file, or a folder with one sort")
    return chosen[0]


def _refuse_options(path: Path, reader: Reader, options: ReadOptions) -> None:
    """Refuse options that say nothing of such data.

    Raises:
        DatasetError: which one.
    """
    if options.tokenizer and "tokenizer" not in reader.takes:
        what = f"no text that the tokenizer {options.tokenizer} could take"
        raise DatasetError(f"{path}: holds {reader.looked_for}, {what}")
    if options.label_field not in (None, NO_FIELD) and "label_field" not in reader.takes:
        what = f"--label-field {options.label_field} is for .json beside images"
        raise DatasetError(f"{path}: holds {reader.looked_for}; {what}")


def suggested_kind(path: Path) -> str:
    """The kind of samples that a file or folder most likely holds: the first of READERS that can be read from it.

    Raises:
        DatasetError: nothing there that could be read as samples of any kind.
    """
    for only_surely in (True, False):
        for kind, readers in READERS.items():
            where = sequences.pair_path(path) if kind == "tokens" else path
            inside = entries(where)
            if any(reader.find(where, inside) for reader in readers if reader.is_last_resort != only_surely):
                return kind
    every = dict.fromkeys(reader.looked_for for readers in READERS.values() for reader in readers)
    raise nothing(path, "", ", ".join(every))
