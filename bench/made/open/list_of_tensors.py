"""Each batch of detections is a list of 640 small tensors, each of which goes to the loop as a shared file of its own."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False


class Boxes(Dataset):
    """Boxes of an image: one tensor a box, as some annotation tools return them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.boxes = torch.rand(5000, 5, generator=generator)

    def __len__(self) -> int:
        return 16 * 400

    def __getitem__(self, i):
        first = (i * 37) % 4800
        return list(self.boxes[first : first + 40].clone().unbind())


def stamp(samples):
    # every box is made a tensor of its own storage, then the time is noted at which the batch is ready
    batch = [[box.clone() for box in boxes] for boxes in samples]
    return batch, time.perf_counter()


def main() -> None:
    torch.set_num_threads(1)
    folder()
    loader = DataLoader(Boxes(), batch_size=16, num_workers=1, collate_fn=stamp, prefetch_factor=2)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = []
    begin = asked = time.perf_counter()
    for batch, ready in watch(loader, batch_size=16):
        got = time.perf_counter()
        boxes = torch.stack([box for boxes in batch for box in boxes])
        loss = nn.functional.mse_loss(net(boxes[:, :4]), boxes[:, 4:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        # of the wait: what comes after the batch was ready in the worker is the handing over
        rows.append((end - asked, got - asked, got - max(asked, ready)))
        asked = end
        if len(rows) >= 75 and end - begin > 22:
            break
    rows = torch.tensor(rows[10:], dtype=torch.float64)
    step_s, wait_s, handed_s = rows.mean(0).tolist()
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=handed_s, steps=len(rows))


if __name__ == "__main__":
    main()
