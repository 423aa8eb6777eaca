"""JPEGs by small direct reads."""
import io
import mmap
import os

from PIL import Image

PIECE = 512


class READER:
    def __init__(self, dataset):
        self.dataset, self.buffer = dataset, None

    def __getitem__(self, row):
        if self.buffer is None:
            self.buffer = mmap.mmap(-1, 4096)
        name = self.dataset.index["file"][row].decode()
        fd = os.open(self.dataset.folder / name, os.O_RDONLY | os.O_DIRECT)
        out, at = io.BytesIO(), 0
        view = memoryview(self.buffer)[:PIECE]
        while got := os.preadv(fd, [view], at):
            out.write(view[:got])
            at += got
            if got < PIECE:
                break
        os.close(fd)
        out.seek(0)
        image = Image.open(out)
        image.draft("RGB", (128, 128))
        return {"image": image.convert("RGB"), "label": int(self.dataset.index["label"][row])}
