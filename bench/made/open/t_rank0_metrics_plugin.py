"""A small transformer over tokens; rank 0 also scores an averaged copy of it in every step."""
import copy
import os
import time

import torch
import torch.distributed as dist
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from torch import nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)
averaged = []
spent = {"loss": 0.0, "score": 0.0, "steps": 0}


class Encoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def error(model, tokens):
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def score(model, tokens):
    own = getattr(model, "module", model)
    if not averaged:
        averaged.append(copy.deepcopy(own))
    for mean, weight in zip(averaged[0].parameters(), own.parameters()):
        mean.lerp_(weight, 0.01)
    return torch.stack([error(averaged[0], tokens) for _ in range(8)]).mean().item()


def loss(model, batch):
    began = time.perf_counter()
    tokens = batch["tokens"].long()
    value = error(model, tokens)
    between = time.perf_counter()
    if dist.is_initialized() and dist.get_rank() == 0:
        score(model, tokens)
    spent["loss"] += between - began
    spent["score"] += time.perf_counter() - between
    spent["steps"] += 1
    if os.environ.get("CASE_LOG") and spent["steps"] % 60 == 0:
        with open(os.environ["CASE_LOG"], "a") as log:
            log.write(f"{os.getpid()} {time.perf_counter():.2f} {spent}\n")
    return value


def synthetic(variant, batch_size, device):
    return {"tokens": torch.randint(512, (batch_size, 129), device=device)}


WORKLOAD = Workload(
    name="averaged_lm",
    kind="tokens",
    variants={"tiny": Variant({"width": 128}, {"seq_len": 128, "vocab_size": 512})},
    build=lambda variant: Encoder(512, variant.model["width"]),
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
)
