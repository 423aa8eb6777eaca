"""A residual network; the first rank follows the noise scale of the gradient, for which it needs those of samples."""


import torch
import torch.distributed as dist
from t_clock import Timers
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def build(variant):
    width = variant.model["width"]
    stem = [nn.Conv2d(3, width, 7, stride=4), nn.ReLU(), Block(width), Block(width), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stem, nn.Linear(width, variant.num_classes))


TIMERS = Timers()
NOISE = {"small": 0.0}


def follow_noise(model, batch, samples=16):
    own = getattr(model, "module", model)
    parameters = [p for p in own.parameters() if p.requires_grad]
    total = 0.0
    for i in range(samples):
        one = cross_entropy(own(batch["image"][i : i + 1]), batch["label"][i : i + 1])
        total += sum(float(g.square().sum()) for g in torch.autograd.grad(one, parameters))
    NOISE["small"] = 0.9 * NOISE["small"] + 0.1 * total / samples


def loss(model, batch):
    with TIMERS.part("noise"):
        if dist.is_initialized() and dist.get_rank() == 0:
            follow_noise(model, batch)
    TIMERS.sample()
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="noise_scale",
    kind="image",
    variants={"tiny": Variant({"width": 24}, {"image_size": 64}, num_classes=100)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
)
