"""Which calls of a training make its steps: batches, backward passes and optimizers, in the orders that loops have."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest

from benchsuite.inside.instruments import Instruments
from benchsuite.inside.loop import Loop
from benchsuite.inside.timestamps import HostStamps
from benchsuite.inside.training import Training
from tests.helpers.watching import Clock


class Iterating:
    """Stands for a loader's iterator."""


class Trained:
    """A training whose every call takes what it is said to take, by a clock of its own."""

    def __init__(self, clock: Clock, replays: bool = False) -> None:
        self.clock, self.loop = clock, Loop(repeat("counted"), keeps_batch=replays)
        began_s = clock()
        self.training = Training(lambda iterator: Instruments(self.loop), lambda: began_s)

    def batches(self, name: str, count: int, load_s: float = 0.0) -> Iterator[int]:
        """A pass over a loader of this name; each batch takes so long to come."""
        iterator = Iterating()
        self.training.open(name)
        for number in range(count):
            again, batch = self.training.ask(iterator, lambda _: name)
            if not again:
                self.clock.passes(load_s)
                batch = number
            self.training.receive(iterator, batch)
            yield batch
        self.training.ask(iterator, lambda _: name)
        self.training.run_out(iterator)

    def compute(self, seconds: float) -> None:
        self.clock.passes(seconds)

    def backward(self, seconds: float) -> None:
        self._part("backward", seconds)

    def exchange(self, seconds: float) -> None:
        self._part("communication", seconds)

    def step(self, seconds: float, optimizer: int = 1, closure: Callable[[], None] = lambda: None) -> None:
        self.training.begin_part("optimizer", optimizer)
        closure()
        self.clock.passes(seconds)
        self.training.end_part("optimizer", optimizer)

    def _part(self, part: str, seconds: float) -> None:
        self.training.begin_part(part)
        self.clock.passes(seconds)
        self.training.end_part(part)

    @property
    def steps(self) -> list[dict[str, float]]:
        return [{name: round(seconds, 6) for name, seconds in step.items()} for step in self.loop.steps.kept]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(HostStamps, "now", staticmethod(made))
    return made


@pytest.fixture
def trained(clock: Clock) -> Trained:
    return Trained(clock)


def plain_steps(trained: Trained, batches: Iterable[Any]) -> None:
    for _ in batches:
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
        trained.compute(0.5)


PLAIN = {"load": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0, "other": 0.5}


def test_a_plain_loop(trained: Trained):
    plain_steps(trained, trained.batches("train", 5, 1))
    assert trained.steps == [PLAIN] * 4, "the first is under way when it is seen that this process trains"
    assert trained.loop.num_uncounted == 1


def test_several_passes(trained: Trained):
    for _ in range(3):
        plain_steps(trained, trained.batches("train", 4, 1))
    assert len(trained.steps) == 3 + 4 + 4
    assert trained.loop.num_passes == 3


@pytest.mark.parametrize("many", [2, 30])
@pytest.mark.parametrize("whole", [True, False], ids=["all batches", "some batches"])
def test_a_validation_is_no_step(trained: Trained, many: int, whole: bool):
    """Its batches are followed by no backward pass, be its loader asked to its end or left before."""
    for _ in range(3):
        plain_steps(trained, trained.batches("train", 4, 1))
        for number, _ in enumerate(trained.batches("validation", many, 7)):
            trained.compute(11)
            if not whole and number == many - 2:
                break
    assert trained.steps == [PLAIN] * len(trained.steps) and len(trained.steps) in (10, 11)


def test_a_validation_in_the_middle_of_a_pass(trained: Trained):
    for number, _ in enumerate(trained.batches("train", 9, 1)):
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
        trained.compute(0.5)
        if number == 4:
            for _ in trained.batches("validation", 5, 7):
                trained.compute(11)
    assert trained.steps == [PLAIN] * 8


def test_gradients_that_are_accumulated_make_a_step_of_each_batch(trained: Trained):
    for number, _ in enumerate(trained.batches("train", 9, 1)):
        trained.compute(2)
        trained.backward(3)
        if number % 4 == 3:
            trained.step(1)
    with_optimizer = [step for step in trained.steps if "optimizer" in step]
    assert len(trained.steps) == 8 and len(with_optimizer) == 2
    assert all((step["load"], step["forward"], step["backward"]) == (1, 2, 3) for step in trained.steps)


def test_two_optimizers_and_two_backward_passes_are_one_step(trained: Trained):
    """As in a GAN."""
    for _ in trained.batches("train", 4, 1):
        for optimizer in (1, 2):
            trained.compute(2)
            trained.backward(3)
            trained.step(1, optimizer)
    assert trained.steps == [{"load": 1, "forward": 4, "backward": 6, "optimizer": 2, "other": 0}] * 3


def test_batches_of_two_loaders_are_one_step(trained: Trained):
    for _ in zip(trained.batches("labelled", 5, 1), trained.batches("unlabelled", 5, 4), strict=True):
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
    whole = {"load": 5, "forward": 2, "backward": 3, "optimizer": 1, "other": 0}
    assert trained.steps[1:] == [whole] * 3


def test_a_batch_that_is_asked_for_ahead(trained: Trained):
    """As Accelerate does: what is asked for is trained on a step later."""
    for _ in range(2):
        batches = trained.batches("train", 5, 1)
        next(batches)
        for _ in batches:
            trained.compute(2)
            trained.backward(3)
            trained.step(1)
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
    whole = {"load": 1, "forward": 2, "backward": 3, "optimizer": 1, "other": 0}
    assert [step for step in trained.steps if step["load"] == 1] == [whole] * len(
        [step for step in trained.steps if step["load"] == 1]
    )
    assert len(trained.steps) >= 6


def test_a_batch_that_is_skipped_costs_its_step(trained: Trained):
    for number, _ in enumerate(trained.batches("train", 9, 1)):
        if number == 4:
            continue
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
    assert [step["load"] for step in trained.steps] == [1, 1, 1, 2, 1, 1, 1]


def test_a_loop_that_asks_no_loader_steps_with_its_optimizer(trained: Trained):
    for _ in range(5):
        for _ in range(2):
            trained.compute(2)
            trained.backward(3)
        trained.step(1)
    assert trained.steps == [{"forward": 4, "backward": 6, "optimizer": 1, "other": 0}] * 4


def test_a_loop_that_asks_no_loader_and_validates_with_one(trained: Trained):
    for number in range(8):
        trained.compute(2)
        trained.backward(3)
        trained.step(1)
        if number == 3:
            for _ in trained.batches("validation", 6, 7):
                trained.compute(11)
    assert trained.steps[:3] == [{"forward": 2, "backward": 3, "optimizer": 1, "other": 0}] * 3
    assert len(trained.steps) >= 5 and all("load" not in step and step["forward"] == 2 for step in trained.steps)


def test_a_backward_pass_within_an_optimizers_step(trained: Trained):
    """As Lightning's closures have it."""

    def closure() -> None:
        trained.compute(2)
        trained.backward(3)

    for _ in trained.batches("train", 4, 1):
        trained.step(1, closure=closure)
    assert trained.steps == [{"load": 1, "other": 0, "forward": 2, "backward": 3, "optimizer": 1}] * 3


def test_exchanges_that_are_waited_for(trained: Trained):
    for _ in trained.batches("train", 4, 1):
        trained.compute(2)
        trained.exchange(5)
        trained.compute(2)
        trained.backward(3)
        trained.exchange(4)
        trained.step(1)
    assert (
        trained.steps == [{"load": 1, "forward": 4, "communication": 9, "backward": 3, "other": 0, "optimizer": 1}] * 3
    )


def test_what_is_left_of_a_backward_pass_that_has_computed_is_exchange(trained: Trained):
    for _ in trained.batches("train", 4, 1):
        trained.compute(2)
        trained.training.begin_part("backward")
        trained.compute(3)
        trained.training.note_computed()
        trained.compute(6)
        trained.training.end_part("backward")
    assert trained.steps == [{"load": 1, "forward": 2, "backward": 3, "communication": 6, "other": 0}] * 3


def test_an_iterator_is_the_jobs_to_keep(trained: Trained):
    """Its workers end with it."""
    iterator = Iterating()
    kept = weakref.ref(iterator)
    trained.training.ask(iterator, lambda _: "train")
    trained.training.receive(iterator, 0)
    del iterator
    assert kept() is None


def test_where_the_time_goes(trained: Trained):
    trained.clock.passes(5.0)
    plain_steps(trained, trained.batches("train", 3, 0.2))
    trained.clock.passes(4.0)
    for _ in trained.batches("valid", 2, 0.1):
        trained.compute(0.3)
    before = trained.training.begin_call("checkpoints")
    trained.clock.passes(2.0)
    trained.training.end_call(before)
    trained.clock.passes(1.0)
    found = trained.training.wall.told()
    steps = {"start_up": 5.0, "training": 3 * 6.5, "input": 0.6}
    assert found == pytest.approx(steps | {"validation": 0.8, "checkpoints": 2.0, "other": 4.0, "end": 1.0})
    assert sum(found.values()) == pytest.approx(trained.clock() - 100.0)


def test_a_loop_that_is_left_is_at_its_end(trained: Trained):
    batches = trained.batches("train", 10)
    for number, _ in enumerate(batches):
        trained.compute(0.1)
        trained.backward(0.2)
        trained.step(0.1)
        if number == 4:
            break
    batches.close()
    trained.clock.passes(3.0)
    assert trained.training.wall.told()["end"] == pytest.approx(3.0)


def test_calls_of_a_process_that_does_not_train_are_no_parts(trained: Trained):
    assert trained.training.begin_call("checkpoints") is None
