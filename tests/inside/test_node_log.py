"""The memory of this process and of those that read for it, by what they really do."""

import os
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from benchsuite.inside import node_log
from benchsuite.inside.node_log import NodeLog

SIZE = 64 << 20


def writes_to_what_it_inherits(inherited: bytearray, told: Connection) -> None:
    told.recv()
    for at in range(0, SIZE, 4096):
        inherited[at] = 1
    told.send(None)
    told.recv()


def test_a_child_that_writes_copies_what_it_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_log, "APART_S", 0.0)
    log, inherited = NodeLog(), bytearray(os.urandom(SIZE))
    mine, its = get_context("fork").Pipe()
    child = get_context("fork").Process(target=writes_to_what_it_inherits, args=(inherited, its))
    child.start()
    assert child.pid is not None
    log.look([child.pid])
    mine.send(None)
    mine.recv()
    log.look([child.pid])
    mine.send(None)
    child.join()
    log.look([child.pid])  # it has ended: nothing is added
    (seen,) = (each for each in log.told()["memory"] if each.is_reader)
    assert len(seen.at_s) == 2
    for values, sign in ((seen.private_bytes, 1), (seen.shared_bytes, -1)):
        assert sign * (values[1] - values[0]) == pytest.approx(SIZE, rel=0.1)
    (own,) = (each for each in log.told()["memory"] if not each.is_reader)
    assert own.pid == os.getpid() and len(own.at_s) == 3


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_log, "APART_S", 0.0)
    monkeypatch.setattr(node_log, "MOST_KEPT", 8)
    log = NodeLog()
    for _ in range(100):
        log.look(())
        log._due_s = 0.0
    assert all(4 <= len(each.at_s) <= 8 for each in log.told()["memory"])
