"""Watched loaders in the hands of frameworks: each of two ranks trains on the batches that it would without a watch."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import benchsuite
from tests.helpers.watching import Files, watched

ROOT = Path(__file__).parents[2]
NUM_SAMPLES, BATCH = 96, 4
COMMON = f"""
import json, os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
import benchsuite

seen = []
data = TensorDataset(torch.arange({NUM_SAMPLES}).float())


def new_loader():
    return DataLoader(data, batch_size={BATCH}, shuffle=True, generator=torch.Generator().manual_seed(1))


def watched(loader, watches):
    return benchsuite.watch(loader, name="mine", warmup_steps=2) if watches else loader
"""
LIGHTNING = """
import lightning.pytorch as pl
from benchsuite.watcher.lightning import WatchCallback


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        seen.append(batch[0].tolist())
        return self.layer(batch[0][:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(watches):
    loader = watched(new_loader(), watches)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[WatchCallback(loader)] if watches else [],
    )
    trainer.fit(Model(), loader)
"""
ACCELERATE = """
from accelerate import Accelerator


def train(watches):
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, new_loader())
    loader = watched(loader, watches)
    for epoch in range(2):
        for batch in loader:
            seen.append(batch[0].tolist())
            accelerator.backward(model(batch[0][:, None]).mean())
            optimizer.step()
            optimizer.zero_grad()
"""
TRAINER = """
import tempfile
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        seen.append(x.flatten().tolist())
        return {"loss": self.layer(x).mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        return {"x": data[index][0][None]}


def train(watches):
    class WatchedTrainer(Trainer):
        def get_train_dataloader(self):
            return watched(super().get_train_dataloader(), watches)

    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=1,
    )
    WatchedTrainer(Model(), arguments, train_dataset=Rows()).train()
"""
BOTH = """
child = os.fork()
rank = 0 if child else 1
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
for how in ("plain", "watched"):
    os.dup2(os.open(f"{sys.argv[1]}/{how}-{rank}.said", os.O_CREAT | os.O_WRONLY), 2)
    train(how == "watched")
    with open(f"{sys.argv[1]}/{how}-{rank}.json", "w") as file:
        json.dump(seen, file)
    seen.clear()
torch.distributed.destroy_process_group()  # Trainer leaves it: threads of gloo may abort the process as it ends
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
"""What frameworks take to be imported is taken once, for both ranks, which then train twice."""
SCRIPTS = {"lightning": LIGHTNING, "accelerate": ACCELERATE, "transformers": TRAINER}


def trained(script: str, folder: Path) -> dict[str, list[str]]:
    """Run a script as two ranks, as torchrun does, without a watch and with it; what each wrote to stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = folder / "train.py"
    path.write_text(COMMON + script + BOTH)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    common |= {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    done = subprocess.run(
        [sys.executable, str(path), str(folder)],
        env=os.environ | common,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
        check=False,
    )
    told = {how: [path.read_text() for path in sorted(folder.glob(f"{how}-*.said"))] for how in ("plain", "watched")}
    assert done.returncode == 0, (done.stderr, told)
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "lightning" else pytest.mark.weekly) for name in SCRIPTS]
)
def test_each_rank_trains_on_the_batches_that_it_would_without(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    told = trained(SCRIPTS[name], tmp_path)
    without, (first, second) = (
        [json.loads((tmp_path / f"{how}-{rank}.json").read_text()) for rank in range(2)] for how in ("plain", "watched")
    )
    assert without == [first, second]
    assert len(first) == len(second) == 2 * NUM_SAMPLES // BATCH // 2, "half of the batches of two epochs"
    epoch = {row for batch in first[: len(first) // 2] + second[: len(second) // 2] for row in batch}
    assert epoch == set(range(NUM_SAMPLES))
    counted = 20 if name == "transformers" else 22  # it asks for no batch after the last: that step has no end
    said = told["watched"][0]
    assert f"{counted} steps counted on each of 2 ranks, 2 before" in said and "never iterated" not in said
    assert not any("steps counted" in text for text in told["plain"])
    if name == "lightning":
        assert all(part in said for part in (" forward ", " backward ", " optimizer "))


def test_a_dataloader_stays_one_of_its_class() -> None:
    class Mine(DataLoader):  # type: ignore[type-arg]
        def twice(self) -> int:
            return 2 * len(self)

    loader = Mine(TensorDataset(torch.arange(8)), batch_size=2, num_workers=0)
    watch = watched(loader)
    assert isinstance(watch, Mine) and type(watch).__name__ == "Mine"
    assert (watch.batch_size, len(watch), watch.twice(), watch.dataset) == (2, 4, 8, loader.dataset)
    assert [batch[0].tolist() for batch in watch] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in watch]
    watch.close()
    assert [len(batch[0]) for batch in watch] == [2] * 4, "it goes on unwatched"


def test_a_loader_that_a_framework_makes_of_its_class_is_watched_too(capsys: pytest.CaptureFixture[str]) -> None:
    """As Lightning does, with a sampler that gives each rank its share."""
    watch = benchsuite.watch(DataLoader(TensorDataset(torch.arange(40)), batch_size=2), name="mine", warmup_steps=2)
    sampler = DistributedSampler(watch.dataset, num_replicas=2, rank=1, shuffle=False)
    again = type(watch)(watch.dataset, batch_size=2, sampler=sampler)
    del watch
    assert [batch[0].tolist()[0] for batch in again][:3] == [1, 5, 9]
    assert "steps counted" not in capsys.readouterr().err
    again.close()
    assert "Only 8 steps were counted" in capsys.readouterr().err


def test_a_watch_that_was_never_iterated_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "warning: benchsuite.watch: mine: the loader was never iterated"
    how = "; where Accelerate prepares loaders, watch what it returns: watch(accelerator.prepare(loader))"
    for hint in ("", how):
        monkeypatch.delitem(sys.modules, "accelerate", raising=False)
        if hint:
            monkeypatch.setitem(sys.modules, "accelerate", torch)
        watched(DataLoader(TensorDataset(torch.arange(8))), name="mine", quiet=False).close()
        assert capsys.readouterr().err == f"{told}{hint}\n"


@pytest.mark.slow
@pytest.mark.parametrize(("stopped_after", "steps"), [(None, 10), (7, 7)])
def test_lightning_that_asks_for_no_batch_after_the_last_ends_its_pass(
    tmp_path: Path, stopped_after: int | None, steps: int
) -> None:
    """Nor does validation count, in the middle of a pass or after a batch that nobody asks another one after."""
    pl = pytest.importorskip("lightning.pytorch")
    from benchsuite.watcher.lightning import WatchCallback

    class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            time.sleep(0.01)
            return self.layer(batch[:, :1].float()).mean()

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.validated_s = time.perf_counter()
            time.sleep(0.5)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Stopping(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
            trainer.should_stop = trainer.global_step == stopped_after

    watch = watched(DataLoader(Files(tmp_path, 40), batch_size=4))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=0.5,
        callbacks=[WatchCallback(watch), Stopping()],
    )
    model, began_s = Model(), time.perf_counter()
    trainer.fit(model, watch, DataLoader(torch.zeros(1), batch_size=1))  # type: ignore[arg-type]
    loop = watch._ending.loop
    assert loop.steps.num_steps == steps and max(sum(step.values()) for step in loop.steps.kept) < 0.5
    counted = loop.counted
    assert counted.read_call_bytes >= 4 * steps * 100_000
    assert 0 < counted.wall_s < model.validated_s - began_s - 0.5, "nor the validation before the last"
    assert watch.figures["read_call_bytes_per_s"] == counted.read_call_bytes / counted.wall_s
