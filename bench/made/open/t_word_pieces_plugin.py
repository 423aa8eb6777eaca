"""BERT's input made on the fly: the row picks two chapters of fifty passages, which are cut into word pieces whole (longest match first);
the front of each is kept and masked."""

import random
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from t_timers import Timers

TEXT = "@DATA@/text/tinyshakespeare.txt"
PAD, UNK, CLS, SEP, MASK = range(5)


class READER:
    def __init__(self, dataset, length=128, predictions=20, words=512):
        self.timers, self.length, self.predictions, self.words = Timers(), length, predictions, words
        text = Path(TEXT).read_text()
        self.passages = [passage for passage in text.split("\n\n") if len(passage) > 120]
        found = re.findall(r"[a-z]+", text.lower())
        whole = [word for word, _ in Counter(found).most_common(260)]
        ends = [f"##{end}" for end, _ in Counter(word[-k:] for word in found for k in (1, 2, 3) if len(word) > k).most_common(180)]
        letters = [c for c in "abcdefghijklmnopqrstuvwxyz.,;:!?'-&"]
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), *whole, *ends]
        self.pieces = {piece: number for number, piece in enumerate(dict.fromkeys(names)) if number < words}

    def split(self, passage):
        """As the reference's BasicTokenizer and WordpieceTokenizer do it, character by character."""
        clean = []
        for c in unicodedata.normalize("NFD", passage.lower()):
            kind = unicodedata.category(c)
            if kind != "Mn":
                clean.append(f" {c} " if kind.startswith("P") else " " if c.isspace() else c)
        out = []
        for word in "".join(clean).split():
            start, parts = 0, []
            while start < len(word):
                for end in range(len(word), start, -1):
                    piece = ("##" if start else "") + word[start:end]
                    if piece in self.pieces:
                        parts.append(self.pieces[piece])
                        start = end
                        break
                else:
                    parts = [UNK]
                    break
            out += parts
        return out

    def __getitem__(self, row):
        choose = random.Random(int(row))
        with self.timers.part("tokenize"):
            first, second = (self.split(" ".join(choose.choices(self.passages, k=50))) for _ in range(2))
            half = (self.length - 3) // 2
            ids = [CLS, *first[:half], SEP, *second[:half], SEP]
            segments = [0] * (min(len(first), half) + 2) + [1] * (min(len(second), half) + 1)
            spots = sorted(choose.sample([i for i, token in enumerate(ids) if token > MASK], self.predictions))
            truth = [ids[i] for i in spots]
            for i in spots:
                ids[i] = MASK if choose.random() < 0.8 else choose.randrange(5, self.words)
            fill = [0] * (self.length - len(ids))
        self.timers.sample()
        return {
            "input_ids": np.array(ids + fill, np.int64), "segment_ids": np.array(segments + fill, np.int64),
            "masked_lm_positions": np.array(spots, np.int64), "masked_lm_ids": np.array(truth, np.int64), "next_sentence_label": int(row) % 2,
        }  # fmt: skip
