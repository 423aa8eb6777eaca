"""Seconds of the parts of a step, appended to the file $CASE_LOG every 10 steps (nothing without it): forward (in the
loss), backward with what is exchanged (from there to the optimizer), optimizer, and the rest of a step."""
import json
import os
import time

import torch

_sums, _at, _steps = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "rest": 0.0}, {}, [0]


def forward_begins():
    now = time.perf_counter()
    if "end" in _at:
        _sums["rest"] += now - _at["end"]
    _at["begin"] = now


def forward_ends():
    _at["loss"] = time.perf_counter()
    _sums["forward"] += _at["loss"] - _at["begin"]


class TimedSGD(torch.optim.SGD):
    def step(self, closure=None):
        t = time.perf_counter()
        if "loss" in _at:
            _sums["backward"] += t - _at["loss"]
        out = super().step(closure)
        _at["end"] = time.perf_counter()
        _sums["optimizer"] += _at["end"] - t
        _steps[0] += 1
        if _steps[0] == 5:
            _sums.update(dict.fromkeys(_sums, 0.0))
        if _steps[0] % 10 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                log.write(json.dumps({"rank": os.environ.get("RANK"), "pid": os.getpid(), "steps": _steps[0], **_sums}) + "\n")
        return out
