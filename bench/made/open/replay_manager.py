"""Off-policy learner: the replay memory, with priorities by rank, lives in a multiprocessing manager on TCP, so that
actors of other machines could reach it; a thread of the learner keeps a few batches in a queue."""
import queue
import threading
import time
from multiprocessing.managers import BaseManager

import numpy as np
import torch
from torch import nn

from case import tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False


class Replay:
    def __init__(self, size=900_000):
        self.rng = np.random.default_rng(0)
        self.priority = self.rng.random(size).astype(np.float32)
        self.frames = self.rng.integers(0, 255, (4000, 4, 32, 32), dtype=np.uint8)

    def sample(self, count, ids, priorities):
        """Take new priorities of the last batch, and give the next one."""
        if len(ids):
            self.priority[ids] = priorities
        ranked = np.argsort(-self.priority)
        u = self.rng.random(count) ** 2
        ids = ranked[(u * len(ranked)).astype(np.int64)]
        rows = ids % len(self.frames)
        return ids, self.frames[rows], self.frames[(rows + 1) % len(self.frames)], (ids % 6), np.cos(ids).astype(np.float32)


class Manager(BaseManager):
    pass


Manager.register("Replay", Replay)


class Feed:
    """Batches from the memory, fetched by a thread."""

    def __init__(self, replay, batch=48):
        self.replay, self.batch = replay, batch
        self.ready, self.back = queue.Queue(3), queue.SimpleQueue()
        self.seconds, self.over = 0.0, False
        self.thread = threading.Thread(target=self.fetch, daemon=True)
        self.thread.start()

    def fetch(self):
        while not self.over:
            try:
                ids, priorities = self.back.get_nowait()
            except queue.Empty:
                ids, priorities = (), ()
            began = time.perf_counter()
            found = self.replay.sample(self.batch, ids, priorities)
            self.seconds += time.perf_counter() - began
            self.ready.put(found)

    def __iter__(self):
        while True:
            yield self.ready.get()


def network():
    return nn.Sequential(nn.Conv2d(4, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 32, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 6))


def main():
    torch.set_num_threads(1)
    with Manager(address=("127.0.0.1", 0), authkey=b"replay") as manager:
        feed = Feed(manager.Replay())
        online, target = network(), network()
        target.load_state_dict(online.state_dict())
        opt = torch.optim.Adam(online.parameters(), 3e-4)
        step = waiting = 0.0
        n, start = 0, time.perf_counter()
        mark = start
        for ids, now, after, action, reward in watch(feed):
            got = time.perf_counter()
            now, after = torch.from_numpy(now).float() / 255, torch.from_numpy(after).float() / 255
            with torch.no_grad():
                goal = torch.from_numpy(reward) + 0.99 * target(after).amax(1)
            error = online(now).gather(1, torch.from_numpy(action)[:, None]).squeeze(1) - goal
            loss = nn.functional.huber_loss(error, torch.zeros_like(error))
            opt.zero_grad()
            loss.backward()
            opt.step()
            feed.back.put((ids, error.detach().abs().numpy()))
            if n % 50 == 0:
                target.load_state_dict(online.state_dict())
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
        wall = time.perf_counter() - start
        feed.over = True
        tell(wall=wall, steps=n, step=step, waiting=waiting, cause=feed.seconds)
        feed.ready.get()
        feed.thread.join(5)


if __name__ == "__main__":
    main()
