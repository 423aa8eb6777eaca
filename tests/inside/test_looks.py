"""Looks at threads: what they cost and see, that they are away when a process forks, and what workers tell."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import benchsuite
from benchsuite.inside.looks import MOST_COST, NAME, Looker, Reading
from tests.helpers.watching import watched

STEPS, STEP_S = 80, 0.01


class Slept(Dataset[int]):
    """Samples that are slept for, in a worker."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, row: int) -> int:
        time.sleep(0.02)
        return row


def threads_at_fork() -> list[str]:
    """Names of this process's threads at the moment in which it forks."""
    found: list[str] = []
    os.register_at_fork(after_in_parent=lambda: found.extend(one.name for one in threading.enumerate()))
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return found


def test_none_looks_while_a_process_forks_and_it_goes_on_after():
    """Python 3.12 warns where a process of several threads forks."""
    looker = Looker(lambda: ("body", 0), Reading)
    looker.start()
    assert NAME in [one.name for one in threading.enumerate()]
    assert NAME not in threads_at_fork()
    looker.start()
    time.sleep(0.3)
    looker.stop()
    assert sum(looker.tally.body.values()) > 0
    assert NAME not in [one.name for one in threading.enumerate()]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_tell_what_they_see_of_themselves(context: str):
    loader: Any = DataLoader(Slept(), batch_size=1, num_workers=1, multiprocessing_context=context)
    watch = watched(loader)
    for _ in watch:
        time.sleep(0.001)
    looks = watch._ending.mine().looks
    assert looks is not None and looks.inside is not None
    assert looks.inside.readers["sleep"] > 0.5 * sum(looks.inside.readers.values())
    assert any(line.line.startswith("Slept.__getitem__ (test_looks.py:") for line in looks.inside.lines)
    assert len(looks.inside.start_s) == 1 and 0 <= looks.inside.start_s[0] < 60
    handing_s, batches = looks.inside.handed_over
    assert handing_s > 0 and 0 < batches <= len(loader)
    watch.close()
    assert not os.path.exists(watch._ending.instruments.inside.folder)


def test_the_users_own_worker_init_is_called():
    loader: Any = DataLoader(Slept(), batch_size=1, num_workers=1, worker_init_fn=fails)
    with pytest.raises(RuntimeError, match="of the user"):
        for _ in watched(loader):
            pass


def fails(worker: int) -> None:
    raise RuntimeError("of the user")


@pytest.mark.weekly
def test_looking_takes_no_more_than_it_may():
    def loader() -> Iterator[int]:
        for number in range(600):
            time.sleep(0.01)
            yield number

    watch = benchsuite.watch(loader(), quiet=True)
    for _ in watch:
        time.sleep(STEP_S)
    looks = watch._ending.mine().looks
    assert looks is not None and looks.cost_fraction is not None and looks.cost_fraction < 1.5 * MOST_COST


MORE_THREADS_THAN_CORES = """
import os, torch, benchsuite
torch.set_num_threads(2 * os.cpu_count())
net = torch.nn.GRU(96, 128, batch_first=True)
watch = benchsuite.watch(range(60), quiet=True, warmup_steps=2)
for _ in watch:
    net(torch.randn(8, 125, 96))[0].sum().backward()
looks = watch._ending.mine().looks
print(sum(looks.body.values()), looks.body.get("exchange", 0), looks.body.get("lock", 0))
"""


def test_one_rank_that_waits_for_its_own_threads_exchanges_nothing():
    """In a process of its own, where no other threads of Python are at something."""
    done = subprocess.run([sys.executable, "-c", MORE_THREADS_THAN_CORES], capture_output=True, text=True, check=True)
    looks, exchange, lock = map(float, done.stdout.split())
    assert looks > 10 and exchange == lock == 0


def computes(seconds: float) -> None:
    """Runs Python, which gives its lock away now and then."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def keeps_the_lock(number: int) -> None:
    """Computes in one call that keeps Python's lock."""
    sum(range(number))


@pytest.mark.weekly
def test_who_keeps_pythons_lock_is_seen_as_often_as_others(monkeypatch: pytest.MonkeyPatch):
    """Whoever looks gets the lock when such a call has ended: the thread must not have gone on when it is looked at."""
    step, seen, chance = 0, Counter[str](), random.Random(0)
    looker = Looker(lambda: ("body", step), Reading)
    monkeypatch.setattr(looker.pace, "next_s", lambda: chance.uniform(0.02, 0.06))
    began_s = time.perf_counter()
    keeps_the_lock(1_000_000)
    number = int(0.03 / (time.perf_counter() - began_s) * 1_000_000)
    spent_s = Counter[str]()
    looker.start()
    while sum(spent_s.values()) < 6.0:
        before_s = time.perf_counter()
        keeps_the_lock(number)
        between_s = time.perf_counter()
        computes(0.03)
        spent_s += Counter({"keeps_the_lock": between_s - before_s, "computes": time.perf_counter() - between_s})
        step += 1
    looker.stop()
    for (_, _, line), (count, _) in looker.tally.lines.items():
        seen[line.partition(" ")[0]] += count
    share, expected = (each["keeps_the_lock"] / sum(each.values()) for each in (seen, spent_s))
    assert sum(seen.values()) > 40
    assert share == pytest.approx(expected, abs=0.25)
