"""BERT sequences with features of their document, which are held in memory: one key for each feature."""
import h5py
import numpy as np
import torch
from t_timers import Timers

torch.set_num_threads(1)
FIELDS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_label")
FEATURES = [f"{kind}_{number}" for kind in ("readability", "layout", "source", "quality") for number in range(40)]


class WithFeatures:
    def __init__(self, dataset):
        self.dataset, self.rows = dataset, None
        self.timers = Timers()

    def open(self):
        with h5py.File(self.dataset.folder / "samples.h5") as file:
            self.rows = {name: file[name][:] for name in FIELDS}
        self.values = np.random.default_rng(0).integers(1000, size=(len(self.dataset.index), len(FEATURES))).tolist()

    def __getitem__(self, row):
        if self.rows is None:
            self.open()
        with self.timers.part("sample"):
            sample = {name: values[row] for name, values in self.rows.items()}
            sample.update(zip(FEATURES, self.values[row]))
        self.timers.sample()
        return sample
