"""Format `tokens` by a memory map, as Megatron-LM's indexed dataset reads it."""

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.formats.tokens import stream_of
from benchsuite.storage.stock.reader import Fields, Stock


class Tokens(TorchDataset[Fields]):
    """Windows of one stream."""

    def __init__(self, dataset: Dataset) -> None:
        self.stream = stream_of(dataset)
        self.seq_len = dataset.manifest.params["seq_len"]

    def __getitem__(self, row: int) -> Fields:
        start = row * self.seq_len
        return {"tokens": np.array(self.stream[start : start + self.seq_len + 1])}


STOCK = Stock("numpy", by_row=Tokens)
