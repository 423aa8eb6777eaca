"""CT frames from a DICOMweb archive, fetched with aiohttp by the loop's own generator, four at a time: it waits for the archive's
answers in asyncio's event loop."""

import asyncio
import multiprocessing
import time

import aiohttp
import numpy as np
import torch
from aiohttp import web
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False
SIZE, BATCH = 96, 8


def archive(port):
    """Played: an archive that takes its time to find a frame on tape or in a far data centre."""
    random = np.random.default_rng(0)
    frames = [random.integers(-1000, 2000, (SIZE, SIZE), dtype=np.int16).tobytes() for _ in range(32)]

    async def frame(request):
        number = int(request.match_info["frame"])
        await asyncio.sleep(0.05 + 0.02 * (number % 3))
        return web.Response(body=frames[number % 32], content_type="application/octet-stream")

    async def run():
        app = web.Application()
        app.router.add_get("/studies/{study}/frames/{frame}", frame)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


class Frames:
    def __init__(self, port, batches):
        self.url, self.batches, self.fetching = f"http://127.0.0.1:{port}/studies/1.2.840/frames/", batches, 0.0

    async def one(self, session, gate, number):
        async with gate, session.get(self.url + str(number)) as answer:
            return np.frombuffer(await answer.read(), np.int16).reshape(SIZE, SIZE)

    async def batch(self, session, gate, numbers):
        return await asyncio.gather(*(self.one(session, gate, number) for number in numbers))

    def __iter__(self):
        events = asyncio.new_event_loop()

        async def opened():
            return aiohttp.ClientSession(), asyncio.Semaphore(4)

        session, gate = events.run_until_complete(opened())
        order = np.random.default_rng(3).permutation(self.batches * BATCH)
        try:
            for numbers in order.reshape(-1, BATCH):
                began = time.perf_counter()
                frames = events.run_until_complete(self.batch(session, gate, numbers))
                self.fetching += time.perf_counter() - began
                pixels = torch.from_numpy(np.stack(frames)).float().clamp(-160, 240) / 200
                yield pixels[:, None], torch.from_numpy(numbers % 3)
        finally:
            events.run_until_complete(session.close())
            events.close()


def main():
    folder()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=archive, args=(there,), daemon=True)
    server.start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    frames = Frames(here.recv(), 150)
    steps, waited, began = 0, 0.0, time.perf_counter()
    asked = began
    for pixels, phase in watch(frames):
        waited += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(model(pixels), phase)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        asked = time.perf_counter()
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, loader=waited / steps, socket=frames.fetching / steps, share=frames.fetching / wall)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
