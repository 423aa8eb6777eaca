"""After each step the loop hands samples to a judge and polls for its verdict each 250 ms, although the judge takes 10 ms."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False

JUDGE = """
import ctypes, json, os, struct, sys
root, parent = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
watcher = libc.inotify_init()
libc.inotify_add_watch(watcher, root.encode(), 0x80)     # moved to
print("ready", flush=True)
while True:
    events = os.read(watcher, 4096)
    offset = 0
    while offset < len(events):
        _, _, _, length = struct.unpack_from("iIII", events, offset)
        name = events[offset + 16 : offset + 16 + length].rstrip(b"\\0").decode()
        offset += 16 + length
        if name.endswith(".ask"):
            path = os.path.join(root, name)
            asked = json.load(open(path))
            os.unlink(path)
            part = path[:-4] + ".part"
            json.dump({"reward": sum(asked["scores"]) / len(asked["scores"])}, open(part, "w"))
            os.rename(part, path[:-4] + ".told")
"""


class Judge:
    """An actor that exchanges files with the judge."""

    def __init__(self, root) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-c", JUDGE, str(root), str(os.getpid())], stdout=subprocess.PIPE, start_new_session=True
        )
        self.process.stdout.readline()
        self.slept = 0.0

    def __call__(self, number: int, scores) -> float:
        part = self.root / f"{number}.new"
        part.write_text(json.dumps({"scores": scores}))
        part.rename(self.root / f"{number}.ask")
        told = self.root / f"{number}.told"
        while not told.exists():
            begin = time.perf_counter()
            time.sleep(0.25)
            self.slept += time.perf_counter() - begin
        reward = json.loads(told.read_text())["reward"]
        told.unlink()
        return reward

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def main() -> None:
    torch.set_num_threads(1)
    judge = Judge(folder())
    policy = nn.Sequential(nn.Linear(40, 256), nn.Tanh(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    states = TensorDataset(torch.randn(64 * 78, 40))
    whole, waits, slept = [], [], []
    try:
        last = time.perf_counter()
        for number, (state,) in enumerate(watch(DataLoader(states, batch_size=64, shuffle=True))):
            got = time.perf_counter()
            before = judge.slept
            chance = torch.distributions.Categorical(logits=policy(state))
            action = chance.sample()
            reward = judge(number, action.float().tolist())
            loss = -(chance.log_prob(action) * (reward - 3.5)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            whole.append(now - last)
            waits.append(got - last)
            slept.append(judge.slept - before)
            last = now
    finally:
        judge.close()
    tell(step_s=np.mean(whole[10:]), waiting_for_input_s=np.mean(waits[10:]), cause_s=np.mean(slept[10:]), steps=len(whole) - 10)


if __name__ == "__main__":
    main()
