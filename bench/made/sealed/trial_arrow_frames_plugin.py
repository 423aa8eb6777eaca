"""Frames of a video as raw pixels in an Arrow file, which is mapped; labels come from the index."""

import atexit
import contextlib
import os
import sys

import numpy as np
import pyarrow as pa
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
        self.dataset, self.timers, self.table = dataset, Timers(), None
        self.path = dataset.folder.parent / "frames.arrow"
        if not self.path.exists():
            self.path = dataset.folder / "frames.arrow"
        if "FRAMES_DISK" not in os.environ:
            os.environ["FRAMES_DISK"] = "1"
            _open.enter_context(slow_disk(self.path.parent, 8_000_000))

    def __getitem__(self, row):
        if self.table is None:
            self.table = pa.ipc.open_file(pa.memory_map(str(self.path)))
        with self.timers.part("touching"):
            pixels = np.frombuffer(self.table.get_batch(row % 480).column(0)[0].as_buffer(), dtype=np.uint8)
            pixels = pixels.reshape(384, 384, 3).copy()
        with self.timers.part("rest"):
            image = Image.fromarray(pixels)
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}
