"""Q-learning of a robot: a thread acts in a remote simulator with the policy that the loop trains, under one lock, so
that no episode is played with weights that are half old, half new."""
import json
import socket
import subprocess
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False

SIMULATOR = """
import json, random, socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
lines = peer.makefile("rwb")
for line in lines:
    time.sleep(0.02)                      # its physics run at 50 Hz
    lines.write(json.dumps([random.gauss(0, 1) for _ in range(24)]).encode() + b"\\n")
    lines.flush()
"""


class Actor(threading.Thread):
    def __init__(self, port, policy, lock):
        super().__init__(daemon=True)
        self.lines = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
        self.policy, self.lock, self.replay = policy, lock, []

    def ask(self, action):
        self.lines.write(json.dumps(action).encode() + b"\n")
        self.lines.flush()
        line = self.lines.readline()
        if not line:
            raise SystemExit  # the simulator is gone
        return torch.tensor(json.loads(line))

    def run(self):
        while True:
            seen = self.ask("reset")
            with self.lock, torch.no_grad():
                for _ in range(6):
                    action = self.policy(seen[None]).argmax().item()
                    after = self.ask(action)
                    self.replay.append((seen, action, after))
                    seen = after


def main():
    torch.set_num_threads(1)
    simulator = subprocess.Popen([sys.executable, "-c", SIMULATOR], stdout=subprocess.PIPE, text=True)
    lock = threading.Lock()
    policy = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6))
    old = TensorDataset(torch.randn(120000, 24), torch.randint(6, (120000,)), torch.randn(120000), torch.randn(120000, 24))
    loader = DataLoader(old, batch_size=64, shuffle=True)
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    Actor(int(simulator.stdout.readline()), policy, lock).start()
    step = waiting = locked = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for state, action, reward, after in watch(loader):
        got = time.perf_counter()
        with lock:
            held = time.perf_counter()
            with torch.no_grad():
                target = reward + 0.98 * policy(after).max(1).values
            loss = nn.functional.smooth_l1_loss(policy(state).gather(1, action[:, None])[:, 0], target)
            opt.zero_grad()
            loss.backward()
            opt.step()
        n += 1
        done = time.perf_counter()
        waiting, locked, step, mark = waiting + got - mark, locked + held - got, step + done - held, done
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=locked)
    simulator.kill()


if __name__ == "__main__":
    main()
