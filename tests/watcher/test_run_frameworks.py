"""`benchsuite run` around trainings by frameworks on two ranks: losses to the bit, each training step seen."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.watcher.test_run import RUN, environment

DATA = """
import json, os, sys, tempfile, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
losses = []

def rows():
    numbers = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(800, 32, generator=numbers), torch.randn(800, 1, generator=numbers))

def note(loss):
    losses.append(loss.item())
    return loss
"""
TORCH = """
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(0)
sampler = DistributedSampler(rows(), seed=1)
loader = DataLoader(rows(), 8, sampler=sampler, num_workers=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = note((net(x) - y).pow(2).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LIGHTNING = """
import lightning.pytorch as pl
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)
    def training_step(self, batch, index):
        return note((self.layer(batch[0]) - batch[1]).pow(2).mean())
    def validation_step(self, batch, index):
        self.layer(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
pl.seed_everything(1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **quiet)
trainer.fit(Model(), DataLoader(rows(), 8, shuffle=True, num_workers=1), DataLoader(rows(), 8))
"""
ACCELERATE = """
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(rows(), 8, shuffle=True))
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(net):
            accelerator.backward(note((net(x) - y).pow(2).mean()))
            optimizer.step()
            optimizer.zero_grad()
"""
TRAINER = """
from transformers import Trainer, TrainingArguments, set_seed
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)
    def forward(self, x, labels=None):
        loss = (self.layer(x) - labels).pow(2).mean()
        return {"loss": note(loss) if self.training else loss, "logits": x}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 800
    def __getitem__(self, index):
        x, y = data[index]
        return {"x": x, "labels": y}
data = rows()
set_seed(1)
quiet = dict(report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True)
more = dict(num_train_epochs=2, use_cpu=True, seed=1, eval_strategy="epoch")
arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=8, **quiet, **more)
Trainer(Model(), arguments, train_dataset=Rows(), eval_dataset=Rows()).train()
"""
WEBDATASET = """
import webdataset as wds
dist.init_process_group("gloo")
torch.manual_seed(0)
folder = os.path.dirname(sys.argv[-1])
tars = [f"{folder}/{number}.tar" for number in range(4)]
if not dist.get_rank():
    for number, path in enumerate(tars):
        with wds.TarWriter(path) as tar:
            for row in range(200):
                tar.write({"__key__": f"{number}{row:04}", "x.pth": torch.full((32,), row / 200.0), "y.cls": row % 7})
dist.barrier()
split = dict(shardshuffle=False, nodesplitter=wds.split_by_node, workersplitter=wds.split_by_worker)
data = wds.WebDataset(tars, **split).shuffle(50, seed=3).decode().to_tuple("x.pth", "y.cls").batched(4)
loader = wds.WebLoader(data, batch_size=None, num_workers=1).unbatched().batched(8)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(2):
    for x, y in loader:
        loss = note((net(x) - y[:, None].float()).pow(2).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
STATEFUL = """
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
from torchdata.stateful_dataloader import StatefulDataLoader  # after the optimizer, as Accelerate imports it
loader = StatefulDataLoader(rows(), 8, sampler=DistributedSampler(rows(), seed=1), num_workers=1)
for epoch in range(2):
    for x, y in loader:
        loss = note((net(x) - y).pow(2).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
DALI = """
import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()

def row(sample):
    x, y = data[(2 * sample.idx_in_epoch + rank) % 800]
    return x.numpy(), y.numpy()

@pipeline_def(batch_size=8, num_threads=1, device_id=None)
def pipeline():
    return tuple(fn.external_source(source=row, num_outputs=2, batch=False, dtype=types.FLOAT))

data = rows()
loader = DALIGenericIterator([pipeline()], ["x", "y"], size=400, auto_reset=True)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(2):
    for (batch,) in loader:
        loss = note((net(batch["x"]) - batch["y"]).pow(2).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
END = """
with open(f"{sys.argv[-1]}-{dist.get_rank()}.json", "w") as file:
    json.dump(losses, file)
dist.barrier()
dist.destroy_process_group()
"""
SCRIPTS = {
    "torch": TORCH,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "transformers": TRAINER,
    "webdataset": WEBDATASET,
    "torchdata": STATEFUL,
    "dali": DALI,
}


BIN = Path(sys.executable).parent
TORCHRUN = (f"{BIN}/torchrun", "--standalone", "--nproc-per-node", "2")
ON_TWO_RANKS = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
"""Without a GPU, too, that is how ranks are launched without MPI."""
LAUNCHERS = {
    "python -m": [sys.executable, "-m", "torch.distributed.run", *TORCHRUN[1:], "-m"],
    "deepspeed": [f"{BIN}/deepspeed", "--num_gpus", "2"],
    "accelerate": [f"{BIN}/accelerate", "launch", *ON_TWO_RANKS.split()],
}


def losses(script: Path, name: str, *before: str, launcher: Sequence[str] = TORCHRUN) -> list[list[float]]:
    """The losses of each rank of a training, as they stand in its files; 100 steps each."""
    started = script.stem if launcher[-1] == "-m" else str(script)
    command = [*before, *launcher, started, str(script.with_name(name))]
    done = subprocess.run(
        command, cwd=script.parent, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(script.with_name(f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "torch" else [pytest.mark.weekly]) for name in SCRIPTS]
)
def test_a_training_is_what_it_is_without(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(DATA + SCRIPTS[name] + END)
    plain = losses(script, "plain")
    assert [len(rank) for rank in plain] == [100, 100]
    assert losses(script, "measured", *RUN, "--store", "store", "--") == plain
    store = ResultsStore(tmp_path / "store")
    (record,) = store.trials()
    samples = store.samples(record)
    assert samples is not None and record.spec["world_size"] == 2
    assert all(rank["blocks"][0]["totals"][0] >= 80 for rank in samples["ranks"])
    parts = {"load_s", "forward_s", "backward_s", "communication_s", "optimizer_s"}
    assert parts <= record.figures.model_dump(exclude_none=True).keys()


@pytest.mark.weekly
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_of_anyones(tmp_path: Path, name: str) -> None:
    if not Path(LAUNCHERS[name][0]).exists():
        pytest.skip(f"{name} is not installed here")
    script = tmp_path / "train.py"
    script.write_text(DATA + TORCH + END)
    plain = losses(script, "plain")
    assert losses(script, "measured", *RUN, "--store", "store", "--", launcher=LAUNCHERS[name]) == plain
    (record,) = ResultsStore(tmp_path / "store").trials()
    assert (record.status, record.spec["world_size"], record.spec["workload"]) == ("ok", 2, "train.py")
