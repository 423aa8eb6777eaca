"""Volumes from HDF5 with an elastic deformation of their own: a coarse random field, made smooth, moves the voxels."""

import os

import h5py
import numpy as np
from scipy import ndimage
from t_clock import Timers


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        self.file = self.pid = None

    def __getitem__(self, row):
        if self.pid != os.getpid():
            self.pid, self.file = os.getpid(), h5py.File(self.dataset.folder / "samples.h5")
        with self.timers.part("load"):
            group = self.file[self.dataset.index["key"][row].decode()]
            image, label = group["image"][:], group["label"][:]
        with self.timers.part("deform"):
            shape = image.shape[1:]
            grid = np.meshgrid(*(np.arange(n, dtype="f4") for n in shape), indexing="ij")
            coarse = np.random.normal(0, 3, (3, 6, 6, 6))
            zoom = [n / 6 for n in shape]
            moved = [g + ndimage.zoom(c, zoom, order=1)[: shape[0], : shape[1], : shape[2]] for g, c in zip(grid, coarse)]
            image = ndimage.map_coordinates(image[0], moved, order=1, mode="nearest")[None]
            label = ndimage.map_coordinates(label[0], moved, order=0, mode="nearest")[None]
        self.timers.sample()
        return {"image": image.astype("f4"), "label": label.astype("u1")}
