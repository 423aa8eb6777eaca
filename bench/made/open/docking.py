"""A generator of molecules is trained by REINFORCE; a docking program behind XML-RPC scores each batch of strings."""
import subprocess
import sys
import time
import xmlrpc.client

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

ALPHABET = "CNOFSPc1n2o3=#()[]+-"
SERVER = """
import sys, threading, time
from xmlrpc.server import SimpleXMLRPCServer

def dock(target, strings):
    time.sleep(0.08)                      # a farm of its own
    return [s.count("c") * 0.1 - abs(s.count("(") - s.count(")")) for s in strings]

server = SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False)
server.register_function(dock)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


class Generator(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, len(ALPHABET))

    def sample(self, scaffold, length=16):
        h, token = torch.tanh(scaffold), torch.zeros(len(scaffold), dtype=torch.long)
        tokens, logp = [], 0.0
        for _ in range(length):
            h = self.cell(self.embed(token), h)
            choice = torch.distributions.Categorical(logits=self.out(h))
            token = choice.sample()
            logp = logp + choice.log_prob(token)
            tokens.append(token)
        return torch.stack(tokens, 1), logp


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    oracle = xmlrpc.client.ServerProxy(f"http://127.0.0.1:{server.stdout.readline().strip()}")
    loader = DataLoader(TensorDataset(torch.randn(32 * 2000, 128)), batch_size=32, shuffle=True)
    model = Generator()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    baseline = step = waiting = asked = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for (scaffold,) in watch(loader):
        got = time.perf_counter()
        tokens, logp = model.sample(scaffold)
        strings = ["".join(ALPHABET[t] for t in row) for row in tokens.tolist()]
        before = time.perf_counter()
        reward = torch.tensor(oracle.dock("6lu7", strings))
        asked += time.perf_counter() - before
        baseline = 0.9 * baseline + 0.1 * reward.mean().item()
        loss = -((reward - baseline) * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step - asked, waiting=waiting, cause=asked)
    server.kill()


if __name__ == "__main__":
    main()
