"""Which of twelve species calls? WAV clips from field recorders, one spectrogram each, classified by a small CNN."""
import time
import wave

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

CLIPS, FRAMES, RATE = 480, 200_000, 32_000


def record(root):
    """The recorders' clips: a chirp in noise, 16 bit mono."""
    rng = np.random.default_rng(3)
    noise = rng.integers(-900, 900, FRAMES + CLIPS * 31, dtype=np.int16)
    t = np.arange(FRAMES) / RATE
    calls = [(4000 * np.sin(2 * np.pi * (300 + 120 * k) * t * (1 + t / 20))).astype(np.int16) for k in range(12)]
    files = []
    for i in range(CLIPS):
        files.append(root / f"clip{i:04d}.wav")
        with wave.open(str(files[-1]), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes((noise[i * 31 : i * 31 + FRAMES] + calls[i % 12]).tobytes())
    return files


class Clips(Dataset):
    def __init__(self, files, workers):
        self.files = files
        self.window = torch.hann_window(1024)
        self.seconds = torch.zeros(workers, dtype=torch.float64).share_memory_()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        began = time.perf_counter()
        with wave.open(str(self.files[i])) as clip:
            pcm = clip.readframes(clip.getnframes())
        self.seconds[get_worker_info().id] += time.perf_counter() - began
        sound = torch.from_numpy(np.frombuffer(pcm, np.int16).astype(np.float32) / 32768)
        power = torch.stft(sound, 1024, 1024, window=self.window, return_complex=True).abs()
        return power[None, :256, :192].log1p(), i % 12


def main():
    torch.set_num_threads(1)
    files = record(folder())
    evict(*files)
    data = Clips(files, workers=2)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 12),
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    step = waiting = 0.0
    n = 0
    with slow_disk(files[0].parent, 9_000_000):
        start = mark = time.perf_counter()
        for spectrum, species in watch(loader):
            got = time.perf_counter()
            opt.zero_grad()
            nn.functional.cross_entropy(model(spectrum), species).backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.seconds.sum()) / 2, reading_by_worker=data.seconds.tolist())


if __name__ == "__main__":
    main()
