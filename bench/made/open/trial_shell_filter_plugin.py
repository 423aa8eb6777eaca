"""Every JPEG is packed and unpacked by xz in a shell, as with an archive's own command."""

import io
import subprocess

from PIL import Image


class READER:
    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, row):
        path = self.dataset.folder / self.dataset.index["file"][row].decode()
        raw = subprocess.run(f"xz -1 -c '{path}' | xz -dc", shell=True, check=True, stdout=subprocess.PIPE).stdout
        image = Image.open(io.BytesIO(raw))
        image.draft("RGB", (224, 224))
        return {"image": image.convert("RGB"), "label": int(self.dataset.index["label"][row])}
