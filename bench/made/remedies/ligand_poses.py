"""How well a ligand sits in its pocket: distances between their atoms in radial bases, and angles at the nearest ones."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

POSES, LIGAND, POCKET, BASES, BATCH = 512, 28, 140, 16, 16


def describe(ligand, pocket):
    away = np.sqrt(((ligand[:, None] - pocket[None]) ** 2).sum(-1))
    bases = np.exp(-((away[..., None] - np.linspace(2, 10, BASES)) ** 2) * 2)
    near = bases.sum(1)
    order = np.argsort(away, 1)[:, :12]
    spokes = pocket[order] - ligand[:, None]
    spokes /= np.linalg.norm(spokes, axis=-1, keepdims=True)
    angles = np.arccos(np.clip(np.einsum("lad,lbd->lab", spokes, spokes), -1, 1))
    turns = np.stack([np.cos(k * angles).mean((1, 2)) for k in range(BASES)], -1)
    return np.concatenate([near, turns], -1).astype(np.float32)


class Poses(Dataset):
    def __init__(self, root):
        rng = np.random.default_rng(11)
        self.ligands = rng.normal(0, 3, (POSES, LIGAND, 3))
        self.pockets = rng.normal(0, 7, (POSES, POCKET, 3))
        self.stored = None
        if applied("cheaper_data", False):
            np.save(root / "described.npy", np.stack([describe(*pair) for pair in zip(self.ligands, self.pockets)]))
            self.stored = np.load(root / "described.npy")

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        i %= POSES
        found = describe(self.ligands[i], self.pockets[i]) if self.stored is None else self.stored[i]
        found = torch.from_numpy(found)
        return (found.half() if applied("smaller_tensors", False) else found), torch.tensor(float(i % 5))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Poses(folder()), batch_size=BATCH, num_workers=applied("more_workers", 2), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    atoms = nn.Sequential(nn.Linear(2 * BASES, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
    score = nn.Sequential(nn.Linear(96, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam([*atoms.parameters(), *score.parameters()], 1e-3)
    marks = []
    for found, affinity in watch(loader):
        loss = nn.functional.mse_loss(score(atoms(found.float()).sum(1))[:, 0], affinity)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
