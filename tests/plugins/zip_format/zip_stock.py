"""The same format as a user of `zipfile` would read it."""

import zipfile

from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.manifest import Dataset, data_file
from benchsuite.storage.stock.reader import Fields, Stock, open_image


class Images(TorchDataset[Fields]):
    """Images of one ZIP file, which each worker opens once."""

    def __init__(self, dataset: Dataset) -> None:
        self.archive = zipfile.ZipFile(data_file(dataset, dataset.manifest.files[0].path))

    def __getitem__(self, row: int) -> Fields:
        image = open_image(self.archive.read(f"{row}/image"))
        return {"image": image, "label": int(self.archive.read(f"{row}/label"))}


STOCK = Stock("zipfile", by_row=Images)
