"""`benchsuite run -- COMMAND`: what it says of a job, and that the job does not change."""

import ast
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchsuite.inside.job import ITERATORS, LOADERS
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.watcher.run_folder import HOOK
from tests.helpers.below import below

ROOT = Path(__file__).parents[2]
RUN = [str(Path(sys.executable).with_name("benchsuite")), "run"]
COMMON = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return torch.full((8,), index / 240), torch.tensor([index % 3 / 3])

def train(epochs=1, **options):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), 4, shuffle=True, **options)
    for epoch in range(epochs):
        for x, y in loader:
            loss = (net(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in DataLoader(Numbers(), 30):
                net(x)
    return loss.item()
"""


class Ran(NamedTuple):
    """How a command has ended."""

    code: int
    out: str
    err: str


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(COMMON + textwrap.dedent(text))
    return path


def ran(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, given: str | None = None) -> Ran:
    done = subprocess.run(
        command, cwd=folder, env=environment(env), input=given, capture_output=True, text=True, timeout=120, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("BENCHSUITE_")}
    return kept | {"PYTHONPATH": str(ROOT)} | (more or {})


def run(folder: Path, *command: str, options: Sequence[str] = (), **how: Any) -> Ran:
    return ran([*RUN, "--store", "store", *options, "--", *command], folder, **how)


def records(folder: Path) -> list[TrialRecord]:
    return ResultsStore(folder / "store").trials()


TELLS_ALL = """
    import multiprocessing, pickle, random
    random.seed(3)
    if __name__ == "__main__":
        how = sys.argv[1] or None
        if how:
            import torch.multiprocessing as mp
            loss = train(multiprocessing_context=how, num_workers=1)
        else:
            loss = train()
        print(repr(loss), random.random(), sys.argv, sys.stdin.read(), __file__, __name__)
        print(sys.path, [name for name in sys.modules if "benchsuite" in name and name[0] != "_"])
        print(pickle.dumps(Numbers), DataLoader.__module__, torch.optim.Optimizer.__init__.__qualname__)
        print("said", file=sys.stderr)
        sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "start_method", ["spawn", *(pytest.param(how, marks=pytest.mark.weekly) for how in ("", "fork", "forkserver"))]
)
def test_nothing_about_the_job_changes(tmp_path: Path, start_method: str):
    """Its losses to the bit, its random numbers, arguments, standard streams, paths, names and exit code."""
    path = script(tmp_path, TELLS_ALL)
    plain = ran([sys.executable, str(path), start_method], tmp_path, given="typed")
    found = run(tmp_path, sys.executable, str(path), start_method, given="typed")
    assert plain.code == 7, plain.err
    assert (found.code, found.out) == (plain.code, plain.out)
    assert plain.err in found.err
    uncounted = 6 + (3 if start_method else 0)  # the queue of a worker is emptied first
    assert f"{60 - uncounted} steps counted, {uncounted} before" in found.err


@pytest.mark.slow
def test_replayed_batches_give_au(tmp_path: Path):
    """The one option that changes what is trained: four blocks of ten steps get the batch before again."""
    text = """
        import time
        class Slow(Numbers):
            def __getitem__(self, index):
                time.sleep(0.001)
                return super().__getitem__(index)
        Numbers = Slow
        steps = []
        from torch.optim.optimizer import register_optimizer_step_post_hook as after_each
        after_each(lambda *_: steps.append(1))
        train(epochs=6)
        print(len(steps))
    """
    found = run(tmp_path, sys.executable, str(script(tmp_path, text)), options=["--ceiling", "replay"])
    assert (found.code, found.out.strip()) == (0, f"{6 * 60 + 40}"), found.err
    (record,) = records(tmp_path)
    samples = ResultsStore(tmp_path / "store").samples(record)
    assert samples is not None
    blocks = {block["kind"]: block for block in samples["ranks"][0]["blocks"]}
    steps, parts_s = blocks["ceiling"]["totals"]
    assert steps == 32 and record.figures.ceiling_step_s == pytest.approx(sum(parts_s.values()) / steps)
    assert record.figures.au == pytest.approx(record.figures.ceiling_step_s / record.figures.step_s_mean, rel=0.3)
    assert record.figures.au < 0.5 < record.figures.input_stall_fraction


def test_the_hook_waits_for_each_kind_of_loader_that_is_seen():
    """It cannot import our tables: any Python reads it."""
    (told,) = (
        each.value
        for each in ast.parse((HOOK / "sitecustomize.py").read_text()).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "MADE_BY_WHO_TRAINS"
    )
    waited_for = ast.literal_eval(told)
    assert {*ITERATORS, *LOADERS} <= waited_for.keys()
    assert all(name in waited_for[module] for module, name in LOADERS.items())


def test_where_the_time_of_the_job_went(tmp_path: Path):
    text = """
        import time
        train(2)
        torch.save(torch.zeros(4_000_000), "checkpoint.pt")
        time.sleep(1)
    """
    found = run(tmp_path, sys.executable, str(script(tmp_path, text)))
    (record,) = records(tmp_path)
    went = record.wall_time_s
    assert went is not None and "s went: " in found.err, found.err
    assert went["end"] >= 1.0
    assert all(went[part] > 0 for part in ("start_up", "training", "input", "validation", "checkpoints"))
    began, ended = (datetime.fromisoformat(moment) for moment in (record.started_at, record.finished_at))
    assert sum(went.values()) == pytest.approx((ended - began).total_seconds(), rel=0.02)


def test_runs_of_one_name_are_a_job_that_went_on(tmp_path: Path):
    command = [sys.executable, str(script(tmp_path, "train(2)"))]
    once = run(tmp_path, *command, options=["--name", "llama"])
    run(tmp_path, *command, options=["--name", "llama", "--session", "another"])
    again = run(tmp_path, *command, options=["--name", "llama"])
    assert [one.job for one in records(tmp_path)] == ["llama"] * 3
    assert "2 runs" not in once.err
    assert re.search(r"of 2 runs of llama went: .* lay between the runs", again.err.replace("\n", " ")), again.err
    told = ran([RUN[0], "report", "--store", "store"], tmp_path)
    assert "of 2 runs of llama" in told.out and "of 3 runs" not in told.out


def test_what_is_said(tmp_path: Path):
    found = run(tmp_path, sys.executable, str(script(tmp_path, "train(3)")), options=["--session", "first"])
    (record,) = records(tmp_path)
    assert record.status == "ok" and record.session == "first" and record.spec["workload"] == "train.py"
    assert record.spec["data"] == {"loader": "_SingleProcessDataLoaderIter", "num_workers": 0}
    assert "train.py · 3 passes, 174 steps counted, 6 before · cpu" in found.err, "validation is no step"
    assert {"load_s", "forward_s", "backward_s", "optimizer_s"} <= record.figures.model_dump(exclude_none=True).keys()
    assert not [*(tmp_path / "store" / "runs").iterdir()]


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "raise KeyError('lost')", "os.kill(os.getpid(), 9)", "os._exit(4)"], ids=str
)
def test_it_ends_as_the_command_does(tmp_path: Path, end: str):
    command = [sys.executable, "-c", f"import os, sys\nprint('said')\nsys.stdout.flush()\n{end}"]
    plain, found = ran(command, tmp_path), run(tmp_path, *command)
    assert (found.code, found.out) == (plain.code, plain.out)
    assert plain.err in found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        ["python", "-I", "{path}"],
        ["python", "-S", "-c", "pass"],
        ["env", "BENCHSUITE_RUN=0", "python", "{path}"],
        ["env", "-u", "BENCHSUITE_RUN", "python", "{path}"],
        ["python", "-c", "print(1)"],
    ],
    ids=" ".join,
)
def test_no_rank_has_reported(tmp_path: Path, how: list[str]):
    path = script(tmp_path, "train()")
    words = [{"python": sys.executable, "{path}": str(path)}.get(word, word) for word in how]
    found = run(tmp_path, *words)
    assert found.code == 0 and found.err.startswith("benchsuite run: no rank has reported: "), found.err
    assert records(tmp_path) == []


def test_a_command_that_fails_before_it_trains(tmp_path: Path):
    found = run(tmp_path, sys.executable, "-c", "raise SystemExit(3)")
    said = "benchsuite run: the command ended (exit code 3) before a training step was seen.\n"
    assert (found.code, found.err) == (3, said)


def test_a_command_that_is_not_there(tmp_path: Path):
    found = run(tmp_path, "pyhton", "train.py")
    assert (found.code, found.err) == (2, "error: pyhton: cannot be started: No such file or directory\n")


@pytest.mark.slow
def test_packages_of_the_job_are_its_own(tmp_path: Path):
    """Another package of our name, and a `sitecustomize` that was there before."""
    (tmp_path / "benchsuite").mkdir()
    (tmp_path / "benchsuite" / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "customs").mkdir()
    (tmp_path / "customs" / "sitecustomize.py").write_text("import builtins\nbuiltins.SITE = 'theirs'\n")
    prints = "print(benchsuite.MINE, SITE, sys.modules['sitecustomize'].__file__)"
    path = script(tmp_path, f"import benchsuite\n{prints}\ntrain()")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "customs"), str(ROOT)])}
    found = run(tmp_path, sys.executable, str(path), env=env)
    assert found.out == f"True theirs {tmp_path / 'customs' / 'sitecustomize.py'}\n", found.err
    assert "54 steps counted" in found.err


@pytest.mark.slow
def test_a_fault_of_ours_costs_the_measuring_alone(tmp_path: Path):
    breaks = "sys.modules['_benchsuite_inside.training'].Training._turn_to = lambda *_: 1 / 0"
    path = script(tmp_path, f"torch.optim.SGD([torch.zeros(1)])\n{breaks}\nprint(train())")
    found = run(tmp_path, sys.executable, str(path))
    path.write_text(path.read_text().replace(breaks, ""))
    assert (found.code, found.out) == (0, ran([sys.executable, str(path)], tmp_path).out)
    told = "benchsuite run: this process is no longer measured: ZeroDivisionError: division by zero\n"
    assert found.err.count(told) == 1


@pytest.mark.slow
def test_a_store_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "store").write_text("")
    found = run(tmp_path, sys.executable, str(script(tmp_path, "train()")))
    assert found.code == 0
    assert "54 steps counted" in found.err and "warning: not stored: " in found.err


GOES_ON = """
import signal, time
{before}
train(4)
open("trained", "w").close()
time.sleep(60)
"""


def started(folder: Path, *command: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started_as(folder, *RUN, "--store", "store", "--", *command)


@contextmanager
def started_as(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=folder, env=environment(), start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


@pytest.mark.slow
def test_a_signal_is_passed_on(tmp_path: Path):
    heeds = "signal.signal(signal.SIGUSR1, lambda *_: (print('heard'), sys.exit(5)))"
    with started(tmp_path, sys.executable, str(script(tmp_path, GOES_ON.format(before=heeds)))) as process:
        wait_for(tmp_path / "trained")
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (5, "heard\n") and "steps counted" in err


@pytest.mark.slow
def test_the_answer_comes_at_sigterm_though_the_job_does_not_hear_it(tmp_path: Path):
    """As of ranks that are in native code, which a handler of Python does not interrupt."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with started(tmp_path, sys.executable, str(script(tmp_path, GOES_ON.format(before=deaf)))) as process:
        wait_for(tmp_path / "trained")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = [*itertools.takewhile(lambda line: not line.startswith("written: "), process.stderr)]
        assert any("steps counted" in line for line in said) and process.poll() is None, "the job goes on"
        (record,) = records(tmp_path)
        assert record.caveats == ["cut_short"]
        (job,) = below(process.pid)
        job.kill()
        assert process.wait(60) == -signal.SIGKILL, process.stderr.read()


@pytest.mark.slow
def test_what_a_killed_run_had_measured_is_in_the_report(tmp_path: Path):
    """Nobody was told: neither the job, nor who had started it."""
    with started(tmp_path, sys.executable, str(script(tmp_path, GOES_ON.format(before="")))) as process:
        wait_for(tmp_path / "trained")
        time.sleep(1)  # so long it may take until the file is there
        status = json.loads(ran([RUN[0], "status", "--store", "store", "--format", "json"], tmp_path).out)
        text = ran([RUN[0], "results", "export", "prometheus", "--store", "store"], tmp_path).out
        os.killpg(process.pid, signal.SIGKILL)
    assert re.search(r"^benchsuite_samples_per_second\{.*\} [1-9]", text, re.M) and re.search(
        r'status="running".* 1\.0', text
    )
    (going_on,) = status["runs"]
    assert going_on["name"] == "train.py" and going_on["steps"] >= 30 and going_on["samples_per_s"] > 0
    assert records(tmp_path) == []
    found = ran([RUN[0], "report", "--store", "store"], tmp_path)
    assert found.code == 0 and "train.py" in found.out, found.err
    (record,) = records(tmp_path)
    assert record.caveats == ["cut_short"] and not [*(tmp_path / "store" / "runs").iterdir()]


WATCHES = """
import benchsuite, signal, time
def train_watched():
    net = torch.nn.Linear(8, 1)
    for number in range(3):
        yield from DataLoader(Numbers(), 4)
def hears(number, frame):
    print("their own handler", file=sys.stderr)
    sys.exit(9)
{before}
watch = benchsuite.watch(train_watched(), store="store", name="mine")
for x, y in watch:
    pass
open("trained", "w").close()
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "code"), [("", -15), ("signal.signal(signal.SIGTERM, hears)", 9)], ids=["", "handler"]
)
def test_a_watched_loop_says_what_it_knows_at_sigterm(tmp_path: Path, before: str, code: int):
    path = script(tmp_path, WATCHES.format(before=before))
    with started_as(tmp_path, sys.executable, str(path)) as process:
        wait_for(tmp_path / "trained")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "mine · " in err and ("their own handler" in err) == bool(before)
    (record,) = records(tmp_path)
    assert record.caveats == ["cut_short"] and not [*(tmp_path / "store" / "runs").iterdir()]


@pytest.mark.slow
def test_what_a_killed_watch_had_measured_is_in_the_report(tmp_path: Path):
    with started_as(tmp_path, sys.executable, str(script(tmp_path, WATCHES.format(before="")))) as process:
        wait_for(tmp_path / "trained")
        time.sleep(1)
        process.kill()
    found = ran([RUN[0], "report", "--store", "store"], tmp_path)
    assert found.code == 0 and "mine" in found.out, found.err
    assert [record.caveats for record in records(tmp_path)] == [["cut_short"]]


def test_the_old_name_of_run_trial(monkeypatch: pytest.MonkeyPatch):
    import benchsuite

    with pytest.warns(DeprecationWarning, match="run_trial"):
        assert benchsuite.run is benchsuite.run_trial
