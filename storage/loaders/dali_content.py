"""Encoded images as DALI is fed them, each compared with what the index says of it.

DALI's readers verify no checksums, and its decoder passes damage within the compressed data; so whatever read an image,
its class and content are looked at before it is decoded.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from benchsuite.storage.dataset.manifest import inside, text
from benchsuite.storage.dataset.sample import Sample, content_digest
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders.reader import LoaderInput

Bytes = npt.NDArray[np.uint8]


class Encoded(NamedTuple):
    """An image as it is stored, the same as it is fed to DALI (best a tensor of its own), and where it belongs."""

    content: Bytes
    fed: Any
    label: int
    row: int
    epoch: int


def source_of(reading: LoaderInput, row: int) -> str:
    """The file that holds a sample."""
    return str(inside(reading.dataset.folder, text(reading.dataset.index["file"][row])))


class Contents:
    """Compares images with the index.

    The first time by the digest; later by the CRC-32C, twenty times faster, of what had that digest.
    """

    def __init__(self, reading: LoaderInput) -> None:
        self._reading = reading
        self._classes = reading.dataset.index["label"]
        self._crcs = np.full(len(self._classes), -1, np.int64)

    def check(self, image: Encoded, label: bytes | memoryview) -> Encoded:
        """The image, whose label is stored in these bytes.

        Raises:
            DatasetError: class or content are not the index's.
        """
        row, said = image.row, self._classes[image.row]
        if image.label != said:
            raise DatasetError(f"{self._named(row)} (row {row}): class {image.label} stands where the index has {said}")
        content: Any = image.content
        crc = crc32c(content.data)
        if self._crcs[row] != crc:
            sample = Sample(self._reading.dataset.key(row), {"image": content.data, "label": label})
            if content_digest(sample) != text(self._reading.dataset.index["digest"][row]):
                raise DatasetError(f"{self._named(row)}: its checksum is not the index's: damaged")
            self._crcs[row] = crc
        return image

    def check_sized(self, image: Encoded, label: bytes) -> Encoded:
        """As `check`, once image and label have as many bytes as the index says."""
        found, said = len(image.content) + len(label), int(self._reading.dataset.index["bytes"][image.row])
        if found != said:
            raise DatasetError(
                f"{self._named(image.row)} (row {image.row}): {found} bytes, the index says {said}: "
                "truncated or changed"
            )
        return self.check(image, label)

    def _named(self, row: int) -> str:
        return f"{source_of(self._reading, row)}: sample {self._reading.dataset.key(row)!r}"
