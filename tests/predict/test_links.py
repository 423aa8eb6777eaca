"""The benchmark of eight nodes: what it makes it removes, without root, and how its layers wait."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from bench import links, network
from bench.network import Network


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of namespaces and links that are there, by a kernel that is not."""
    there: list[str] = []

    def ip(*words: object) -> str:
        match [str(word) for word in words]:
            case ["netns" | "link" as kind, "add", name, *_]:
                there.append(f"{kind} {name}")
            case ["netns" | "link" as kind, "del", name]:
                there.remove(f"{kind} {name}")
            case ["-n", space, "link", "set", "fabric0", "up"] if space.endswith("-2"):
                raise RuntimeError("no more links")
            case _:
                pass
        return ""

    monkeypatch.setattr(network, "ip", ip)
    monkeypatch.setattr(network, "HOSTS", tmp_path)
    monkeypatch.setattr(network.subprocess, "run", lambda *_, **__: network.subprocess.CompletedProcess([], 0))
    return there


def test_nothing_is_left_of_a_network_that_could_not_be_made(made: list[str], tmp_path: Path):
    with pytest.raises(RuntimeError, match="no more links"):
        Network(3)
    assert made == [] and list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_network_that_was_closed(made: list[str], tmp_path: Path):
    net = Network(1)
    assert len(made) == 3 and len(list(tmp_path.iterdir())) == 1
    net.close()
    net.close()
    assert made == [] and list(tmp_path.iterdir()) == []


def test_sweeps_differ_in_what_they_name():
    found = {mode: links.sweep(mode, 2, (1, 2)) for mode in links.MODES}
    assert {mode: one["base"]["measure"]["steps"] for mode, one in found.items()} == {
        "ddp": 8,
        "fsdp": 8,
        "tp": 12,
        "pp": 8,
    }
    assert all({*one} == {"name", "base", "grid", "scaling"} for one in found.values())
    assert found["tp"]["base"]["workload"].endswith(":TENSOR_PARALLEL")


class TestPace:
    """Layers of 8 ms a sample, four samples, by a clock that is made up."""

    @pytest.fixture
    def waiting(self) -> ModuleType:
        found = spec_from_file_location("waiting", links.PLUGIN)
        assert found is not None and found.loader is not None
        module = module_from_spec(found)
        found.loader.exec_module(module)
        return module

    @pytest.fixture
    def pace(self, waiting: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
        made = waiting.Pace(lambda: 1)
        now, busy, slept, over = [0.0], [0.0], [0.0], [0.0]

        def sleep(seconds: float) -> None:
            slept[0] = seconds
            now[0] += seconds + over[0]

        monkeypatch.setattr(waiting.time, "sleep", sleep)
        monkeypatch.setattr(waiting.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(waiting, "busy_s", lambda: busy[0])

        def layer(used_s: float, overslept_s: float = 0.0) -> float:
            """What is slept after a layer that ran or waited for so long."""
            made.begin()
            busy[0] += used_s
            over[0] = overslept_s
            made.sleep(0.008, 4)
            return slept[0]

        return layer

    def test_a_layer_takes_its_time_whatever_it_waited_for_a_core(self, pace: Callable[..., float]):
        assert [pace(used) for used in (0.003, 0.012, 0.0)] == pytest.approx([0.029, 0.020, 0.032])

    def test_what_a_layer_is_late_the_next_makes_up(self, pace: Callable[..., float]):
        assert pace(0.003, 0.002) == pytest.approx(0.029), "woken 2 ms late"
        assert pace(0.003) == pytest.approx(0.027)
        assert pace(0.040) == 0.0, "8 ms too long"
        assert pace(0.003) == pytest.approx(0.021)
        assert pace(0.003) == pytest.approx(0.029), "made up"

    def test_no_more_than_a_layer_is_made_up(self, pace: Callable[..., float]):
        assert [pace(1.0), pace(0.0), pace(0.0)] == pytest.approx([0.0, 0.0, 0.032])

    def test_waiting_for_a_core_counts_as_running(self, waiting: ModuleType, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(waiting.time, "thread_time", lambda: 1.0)
        monkeypatch.setattr(waiting, "run_queue_s", lambda: 5.0)
        assert waiting.busy_s() == 6.0
        monkeypatch.setattr(waiting, "run_queue_s", lambda: None)
        assert waiting.busy_s() == 1.0, "where the kernel keeps no such time"


def test_goals_tell_how_many_intervals_hold(capsys: pytest.CaptureFixture[str]):
    rows = [links.Held("ddp", 8, 1.0, 1.05, 0.9, 1.2), links.Held("tp", 8, 1.0, 1.2, 1.1, 1.3)]
    links.show_goals(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "coverage: 1 of 2 90 % intervals hold what was measured (50%)"
    assert [line.strip() for line in lines[1:]] == [
        "goal: median error <= 8%: MISSED (12.5%)",
        "goal: worst error <= 15%: MISSED (20.0%)",
    ]
