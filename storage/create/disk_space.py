"""Disk space that writing a dataset needs, about, so that a disk too small is refused before the first byte."""

from benchsuite.storage.dataset.manifest import Format, Options
from benchsuite.storage.dataset.token_samples import mlm_bytes, token_bytes
from benchsuite.storage.formats.tfrecord import DEFAULT_SHARD_SAMPLES
from benchsuite.storage.sources import Source

FILE_OVERHEAD_BYTES = 16_384
"""For each file of many samples: its beginning and end, its index, and what their last blocks leave empty."""


def needed_bytes(source: Source, kind: str, form: Format, options: Options) -> int:
    """Disk space that storing these samples in a format takes while it is written: rather too much than too little."""
    factor = form.space_factor if isinstance(form.space_factor, float) else form.space_factor[kind]
    count = _num_samples(source, kind)
    shards = FILE_OVERHEAD_BYTES * _num_files(form, count, options)
    return int(source.size_bytes * factor) + count * form.sample_overhead_bytes + shards


def _num_samples(source: Source, kind: str) -> int:
    """How many samples there are; where only reading tells, those of sequences by their bytes."""
    if source.count is not None or kind not in ("mlm", "tokens"):
        return source.count or 0
    return source.size_bytes // (mlm_bytes if kind == "mlm" else token_bytes)(source.params)


def _num_files(form: Format, count: int, options: Options) -> int:
    """How many files of many samples a format writes."""
    default = DEFAULT_SHARD_SAMPLES if "shard_samples" in form.options else 0
    samples = int(options.get("shard_samples", default)) or int(options.get("file_samples", 0))
    return -(-count // samples) if samples > 0 else 1
