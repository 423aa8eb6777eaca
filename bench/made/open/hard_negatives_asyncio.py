"""Retrieval with hard negatives: an asyncio client asks a nearest-neighbour service over TCP for each batch, and the
loop waits for the service's answer of 70 ms."""
CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

import asyncio
import multiprocessing
import socket
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch

BATCH, NEGATIVES, WIDTH, STEPS = 32, 4, 64, 270
ASK, ANSWER = BATCH * WIDTH * 4, BATCH * NEGATIVES * WIDTH * 4


def serve(listening):
    """The service: its search takes 70 ms, on machines that are not ours."""
    index = np.random.default_rng(1).standard_normal((5000, WIDTH), dtype=np.float32)

    async def answer(reader, writer):
        try:
            while True:
                await reader.readexactly(ASK)
                await asyncio.sleep(0.07)
                found = index[np.random.randint(0, len(index), BATCH * NEGATIVES)]
                writer.write(found.tobytes())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main():
        server = await asyncio.start_server(answer, sock=listening)
        await server.serve_forever()

    asyncio.run(main())


class Triplets:
    def __init__(self, address):
        self.address, self.asked_s = address, 0.0

    async def ask(self, reader, writer, queries):
        writer.write(queries.tobytes())
        await writer.drain()
        return np.frombuffer(await reader.readexactly(ANSWER), np.float32).copy()

    def __iter__(self):
        rng = np.random.default_rng(2)
        loop = asyncio.new_event_loop()
        reader, writer = loop.run_until_complete(asyncio.open_connection(*self.address))
        for _ in range(STEPS):
            queries = rng.standard_normal((BATCH, WIDTH), dtype=np.float32)
            positives = queries + 0.1 * rng.standard_normal((BATCH, WIDTH), dtype=np.float32)
            began = time.perf_counter()
            negatives = loop.run_until_complete(self.ask(reader, writer, queries))
            self.asked_s += time.perf_counter() - began
            yield tuple(map(torch.from_numpy, (queries, positives, negatives.reshape(BATCH, NEGATIVES, WIDTH))))
        writer.close()
        loop.run_until_complete(writer.wait_closed())
        loop.close()


def main():
    torch.set_num_threads(1)
    listening = socket.create_server(("127.0.0.1", 0))
    service = multiprocessing.Process(target=serve, args=(listening,), daemon=True)
    service.start()
    tower = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, WIDTH))
    adam = torch.optim.Adam(tower.parameters(), 1e-3)
    triplets = Triplets(listening.getsockname())
    step_s = wait_s = 0.0
    start = last = time.perf_counter()
    for query, positive, negative in watch(triplets):
        got = time.perf_counter()
        wait_s += got - last
        q, p, n = tower(query), tower(positive), tower(negative)
        logits = torch.cat([(q * p).sum(-1, keepdim=True), torch.einsum("bd,bnd->bn", q, n)], 1) / 8
        loss = nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        adam.zero_grad()
        loss.backward()
        adam.step()
        last = time.perf_counter()
        step_s += last - got
    tell(steps=STEPS, wall_s=time.perf_counter() - start, step_s=step_s, wait_s=wait_s, service_s=triplets.asked_s)
    service.terminate()
    service.join()


if __name__ == "__main__":
    main()
