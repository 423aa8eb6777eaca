"""Tiles of slides of tissue as BMP; what was read is dropped from the page cache, as other jobs need it."""

import atexit
import contextlib
import io
import os
import sys

from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from case import slow_disk  # noqa: E402
from t_timers import Timers  # noqa: E402

_open = contextlib.ExitStack()


@atexit.register
def _close():
    with contextlib.suppress(Exception):
        _open.close()


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        self.tiles = dataset.folder.parent / "tiles"
        if not self.tiles.exists():
            self.tiles = dataset.folder / "tiles"
        if "SLIDE_DISK" not in os.environ:
            os.environ["SLIDE_DISK"] = "1"
            _open.enter_context(slow_disk(self.tiles, 8_000_000))

    def __getitem__(self, row):
        with self.timers.part("reading"), open(self.tiles / f"{row % 320:04d}.bmp", "rb") as file:
            raw = file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with self.timers.part("rest"):
            image = Image.open(io.BytesIO(raw)).convert("RGB")
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}
