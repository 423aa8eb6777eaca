"""Land-use tiles as objects of an S3 bucket (a server beside, 30 ms to each object), fetched one by one with boto3 in
two workers: the workers wait for objects."""
CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

import io
import multiprocessing
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

STEPS, BATCH = 190, 8


class Store(BaseHTTPRequestHandler):
    """What plays S3: the first byte of an object takes 30 ms."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: list = []

    def do_GET(self):
        time.sleep(0.03)
        body = self.objects[int(self.path.rsplit("/", 1)[1][:6]) % len(self.objects)]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"tile"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(server):
    rng = np.random.default_rng(0)
    for _ in range(64):
        out = io.BytesIO()
        np.save(out, rng.integers(0, 4000, (4, 64, 64), dtype=np.uint16))
        Store.objects.append(out.getvalue())
    server.serve_forever()


class Tiles(Dataset):
    def __init__(self, endpoint):
        self.endpoint, self.s3 = endpoint, None

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        if self.s3 is None:
            import boto3

            keys = {"aws_access_key_id": "reader", "aws_secret_access_key": "reader"}
            self.s3 = boto3.client("s3", endpoint_url=self.endpoint, region_name="eu-west-1", **keys)
        began = time.perf_counter()
        raw = self.s3.get_object(Bucket="tiles", Key=f"z12/{i:06d}.npy")["Body"].read()
        taken = time.perf_counter() - began
        bands = np.load(io.BytesIO(raw)).astype(np.float32) / 4000
        return {"bands": bands, "use": i % 6, "get_s": taken}


def main():
    torch.set_num_threads(1)
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    process = multiprocessing.Process(target=serve, args=(server,), daemon=True)
    process.start()
    body = [nn.Conv2d(4, 24, 3, 2), nn.ReLU(), nn.Conv2d(24, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 6))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    dataset = Tiles(f"http://127.0.0.1:{server.server_address[1]}")
    spent = {"step_s": 0.0, "wait_s": 0.0, "get_s_per_worker": 0.0}
    steps, start = 0, time.perf_counter()
    before = start
    for batch in watch(DataLoader(dataset, BATCH, num_workers=2)):
        now = time.perf_counter()
        spent["wait_s"] += now - before
        sgd.zero_grad()
        nn.functional.cross_entropy(net(batch["bands"]), batch["use"]).backward()
        sgd.step()
        steps += 1
        spent["get_s_per_worker"] += batch["get_s"].sum().item() / 2
        before = time.perf_counter()
        spent["step_s"] += before - now
    tell(steps=steps, wall_s=time.perf_counter() - start, **spent)
    process.terminate()
    process.join()


if __name__ == "__main__":
    main()
