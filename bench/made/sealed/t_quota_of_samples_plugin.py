"""At most so many samples a second."""
import time

from PIL import Image


class READER:
    def __init__(self, dataset):
        self.dataset, self.due = dataset, 0.0

    def __getitem__(self, row):
        now = time.monotonic()
        if now < self.due:
            time.sleep(self.due - now)
        self.due = max(now, self.due) + 1 / 45
        name = self.dataset.index["file"][row].decode()
        return {"image": Image.open(self.dataset.folder / name).convert("RGB"), "label": int(self.dataset.index["label"][row])}
