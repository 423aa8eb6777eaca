"""JPEGs from an LMDB whose pages have to come from a slow disk."""
import atexit
import io
from contextlib import ExitStack

import lmdb
from case import evict, slow_disk
from PIL import Image
from t_timers import Timers

RATE = 1_600_000


class ColdMap:
    def __init__(self, dataset):
        self.dataset, self.env = dataset, None
        self.timers = Timers()

    def open(self):
        folder = self.dataset.folder
        evict(folder / "data.mdb")
        disk = ExitStack()
        disk.enter_context(slow_disk(folder, RATE))
        atexit.register(disk.close)
        self.env = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)

    def __getitem__(self, row):
        if self.env is None:
            self.open()
        with self.timers.part("pages"), self.env.begin() as reading:
            jpeg = reading.get(b"%010d/image" % row)
        with self.timers.part("decode"):
            image = Image.open(io.BytesIO(jpeg)).convert("RGB")
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}
