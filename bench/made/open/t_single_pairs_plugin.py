"""Next-sentence prediction with batches of one, as an online learner takes them; the pairs are all in memory."""

import numpy as np
import torch
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from torch import nn
from torch.nn.functional import cross_entropy

from t_timers import Timers

LENGTH, PREDICTIONS, WORDS = 128, 20, 512


class READER:
    def __init__(self, dataset):
        random = np.random.default_rng(0)
        self.timers, self.pairs = Timers(), []
        for number in range(500):
            self.pairs.append({
                "input_ids": random.integers(5, WORDS, LENGTH), "segment_ids": (np.arange(LENGTH) > 60).astype(np.int64),
                "masked_lm_positions": np.sort(random.choice(LENGTH, PREDICTIONS, replace=False)),
                "masked_lm_ids": random.integers(5, WORDS, PREDICTIONS), "next_sentence_label": number % 2,
            })  # fmt: skip

    def __getitem__(self, row):
        with self.timers.part("get"):
            pair = self.pairs[int(row) % 500]
        self.timers.sample()
        return pair


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.EmbeddingBag(WORDS, 32), nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(self.embed(ids % WORDS))


def loss(model, batch):
    return cross_entropy(model(batch["input_ids"].long()), batch["next_sentence_label"].long().flatten())


def synthetic(variant, batch_size, device):
    return {
        "input_ids": torch.randint(WORDS, (batch_size, LENGTH), device=device),
        "next_sentence_label": torch.randint(2, (batch_size,), device=device),
    }


WORKLOAD = Workload(
    name="pairs",
    kind="mlm",
    variants={"tiny": Variant({"vocab_size": WORDS}, {"seq_len": LENGTH, "max_predictions": PREDICTIONS, "vocab_size": WORDS})},
    build=lambda variant: Pair(),
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
