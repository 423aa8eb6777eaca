"""CT volumes out of HDF5, augmented by MONAI in the worker."""
import h5py
import numpy as np
import torch
from t_timers import Timers

torch.set_num_threads(1)


class Augmented:
    def __init__(self, dataset):
        self.dataset, self.file = dataset, None
        self.timers = Timers()

    def open(self):
        from monai.transforms import Compose, GaussianSmoothd, Rand3DElasticd, RandBiasFieldd

        self.file = h5py.File(self.dataset.folder / "samples.h5")
        both = ["image", "label"]
        self.augment = Compose(
            [
                Rand3DElasticd(both, (5, 7), (50, 150), prob=1.0, mode=["bilinear", "nearest"], padding_mode="border"),
                RandBiasFieldd("image", degree=4, prob=1.0),
                GaussianSmoothd("image", sigma=1.2),
            ]
        )

    def __getitem__(self, row):
        if self.file is None:
            self.open()
        with self.timers.part("read"):
            case = self.file[self.dataset.index["key"][row].decode()]
            sample = {"image": case["image"][:], "label": case["label"][:]}
        with self.timers.part("augment"):
            sample = self.augment(sample)
            image = np.ascontiguousarray(sample["image"].numpy(), dtype=np.float32)
            label = np.ascontiguousarray(sample["label"].numpy(), dtype=np.uint8)
        self.timers.sample()
        return {"image": image, "label": label}
