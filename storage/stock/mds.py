"""Format `mds` by MosaicML's `streaming`: its `LocalDataset`, sample by sample."""

from typing import Any

from streaming import LocalDataset
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, data_file, text
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.mds import INDEX
from benchsuite.storage.stock.reader import Fields, Stock


class Mds(TorchDataset[Fields]):
    """Shards that lie here; each is looked at when it is first read. Pickles are not loaded, nor other files opened."""

    def __init__(self, dataset: Dataset) -> None:
        data_file(dataset, INDEX)
        self.dataset, self.kind = dataset, dataset.manifest.kind
        self.names, self.found = dataset.index["file"].tolist(), set[bytes]()
        self.opened: Any = LocalDataset(str(dataset.folder))
        listed = {info.path for info in dataset.manifest.files}
        for shard in self.opened.shards:
            shard.validate(False)
            if shard.raw_data.basename not in listed:
                raise DatasetError(f"{dataset.folder / INDEX}: {shard.raw_data.basename} is no file of this dataset")

    def __getitem__(self, row: int) -> Fields:
        name = self.names[row]
        if name not in self.found:
            data_file(self.dataset, text(name))
            self.found.add(name)
        sample = self.opened[row]
        if self.kind == "image":
            return {"image": sample["image"].convert("RGB"), "label": sample["label"]}
        return {field: sample[field] for field in KIND_FIELDS[self.kind]}


STOCK = Stock("mosaicml-streaming", by_row=Mds)
