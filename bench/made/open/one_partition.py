"""Taxi trips from a partitioned parquet table, fragments dealt to four workers: the filter leaves one fragment, so three workers have
nothing to read, and the one that has parses and asks the map matcher for all."""

import http.client
import json
import multiprocessing
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1
BORDERLINE = False
TRIPS, FIXES, BATCH = 720, 210, 24


class Matcher(BaseHTTPRequestHandler):
    """Played: a service that snaps positions to roads; it answers many askers at once."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_POST(self):
        count = len(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        time.sleep(0.038)
        answer = json.dumps([7 * i % 50 for i in range(count)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Matcher)
    port.send(server.server_port)
    server.serve_forever()


class Trips(IterableDataset):
    def __init__(self, path, port):
        self.path, self.port = str(path), port

    def __iter__(self):
        worker = get_worker_info()
        table = ds.dataset(self.path, partitioning="hive")
        chosen = [fragment.path for fragment in table.get_fragments(filter=ds.field("city") == "utrecht")]
        link = http.client.HTTPConnection("127.0.0.1", self.port)
        for path in sorted(chosen)[worker.id :: worker.num_workers]:
            for rows in ds.dataset(path, format="parquet").to_batches(columns=["fixes", "paid"], batch_size=BATCH):
                began = time.perf_counter()
                tracks = np.zeros((len(rows), FIXES, 3), np.float32)
                for trip, text in enumerate(rows["fixes"].to_pylist()):
                    for number, line in enumerate(text.splitlines()):
                        when, lat, lon = line.split(",")
                        tracks[trip, number] = datetime.strptime(when, "%Y-%m-%dT%H:%M:%S").hour, float(lat) - 52, float(lon) - 5
                parsed = time.perf_counter()
                link.request("POST", "/match", json.dumps([track[-1].tolist() for track in tracks]))
                roads = json.loads(link.getresponse().read())
                matched = time.perf_counter()
                paid = torch.tensor(rows["paid"].to_pylist(), dtype=torch.float32)
                yield torch.from_numpy(tracks), torch.tensor(roads), paid, worker.id, parsed - began, matched - parsed


class Fare(nn.Module):
    def __init__(self):
        super().__init__()
        self.track, self.road, self.out = nn.GRU(3, 48, batch_first=True), nn.Embedding(50, 16), nn.Linear(64, 1)

    def forward(self, tracks, roads):
        return self.out(torch.cat([self.track(tracks[:, ::5])[1][0], self.road(roads)], 1)).squeeze(1)


def make(place):
    """In a process of its own, so that the workers are forked from one without Arrow's threads."""
    random = np.random.default_rng(0)
    for number, city in enumerate(["amersfoort", "utrecht", "zeist", "houten"]):
        where = random.normal([52.0, 5.1], 0.05, (TRIPS, FIXES, 2))
        fixes = ["\n".join(f"2024-01-{1 + i % 28:02}T{8 + j // 60:02}:{j % 60:02}:00,{a:.5f},{o:.5f}" for j, (a, o) in enumerate(trip)) for i, trip in enumerate(where)]
        table = pa.table({"fixes": fixes, "paid": random.uniform(5, 60, TRIPS), "city": [city] * TRIPS})
        ds.write_dataset(table, place, format="parquet", partitioning=["city"], partitioning_flavor="hive", existing_data_behavior="overwrite_or_ignore")


def main():
    place = folder() / "trips"
    maker = multiprocessing.Process(target=make, args=(place,))
    maker.start()
    maker.join()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Fare()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = watch(DataLoader(Trips(place, here.recv()), batch_size=None, num_workers=4, persistent_workers=True))
    steps, waited, first, parsing, matching, given, began = 0, 0.0, 0.0, 0.0, 0.0, [0] * 4, time.perf_counter()
    while time.perf_counter() - began < 22:
        asked = time.perf_counter()
        for tracks, roads, paid, worker, parse, match in loader:
            waited, parsing, matching = waited + time.perf_counter() - asked, parsing + parse, matching + match
            given[worker] += 1
            first = first or waited
            loss = nn.functional.huber_loss(model(tracks, roads), paid)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            asked = time.perf_counter()
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, loader=waited / steps, first_wait=first, batches_of_workers=given, parse=parsing / steps, match=matching / steps, share=waited / wall)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
