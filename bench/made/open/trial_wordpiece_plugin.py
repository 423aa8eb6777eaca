"""Sequences are spelled as text and split again by a greedy WordPiece tokenizer, then masked: other masks in each pass."""

import random
import unicodedata

import numpy as np
from t_clock import Timers

_spell = random.Random(0)
WORDS = ["".join(_spell.choice("aeioulnrstdm") for _ in range(_spell.randint(2, 9))) for _ in range(512)]
VOCABULARY = {word: i for i, word in enumerate(WORDS)}


def clean(text):
    text = unicodedata.normalize("NFD", text)
    kept = [c for c in text if unicodedata.category(c) not in ("Mn", "Cc")]
    return "".join(" " if unicodedata.category(c) == "Zs" else c.lower() for c in kept)


def pieces(word):
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            if word[start:end] in VOCABULARY:
                found.append(VOCABULARY[word[start:end]])
                start = end
                break
        else:
            return found or [100]
    return found


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def __getitem__(self, row):
        with self.timers.part("load"):
            stored = np.load(self.dataset.folder / self.dataset.index["file"][row].decode())
            sample = {name: stored[name].copy() for name in stored.dtype.names}
        with self.timers.part("tokenize"):
            ids = sample["input_ids"]
            for _ in range(12):  # twelve sentences are candidates, the last one stays
                text = " ".join(WORDS[i] for i in ids)
                words = clean(text).split(" ")
                tokens = [piece for word in words for piece in pieces(word)][: len(ids)]
            ids[: len(tokens)] = tokens
            masked = np.sort(np.random.choice(len(ids) - 2, len(sample["masked_lm_positions"]), replace=False) + 1)
            sample["masked_lm_positions"][:], sample["masked_lm_ids"][:] = masked, ids[masked]
            ids[masked] = 103
        self.timers.sample()
        return sample
