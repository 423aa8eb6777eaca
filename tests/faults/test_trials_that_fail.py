"""A trial that raises, exits, hangs, is killed or runs out of memory is a record, and the sweep goes on."""

import pytest

from tests.faults.conftest import Bench, Here

SYNTHETIC = {
    "workload": "faulty",
    "variant": "sound",
    "data": {"source": "synthetic"},
    "batch_size": 2,
    "device": "cpu",
    "measure": {"steps": 6, "warmup_steps": 4, "repeats": 1, "timeout_s": 8},
}

EXPECTED = {
    "raises": ("failed", "ArithmeticError: the model has had enough"),
    "exits": ("failed", "exit status 7: leaving without a word of why"),
    "hangs": ("timeout", "faulty.py"),
    "allocates": ("oom", "can't allocate memory"),
    "is_killed": ("failed", "killed by SIGSEGV"),
    "nan": ("failed", "loss is nan"),
    "sound": ("ok", None),
}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_every_fault_is_a_record_and_the_sweep_goes_on(bench: Bench, here: Here, ranks: int) -> None:
    mode = "none" if ranks == 1 else "ddp"
    base = SYNTHETIC | {"parallelism": mode, "world_size": ranks}
    path = bench.write({"name": "faults", "base": base, "grid": {"variant": list(EXPECTED)}})
    again = ("sweep", path, "--store", bench.store)
    code, out, err = here(*again)
    assert code == 3, err
    assert "Traceback" not in out + err
    records = {record["spec"]["variant"]: record for record in bench.records()}
    assert set(records) == set(EXPECTED)
    for variant, (status, reason) in EXPECTED.items():
        record = records[variant]
        assert record["status"] == status, record
        if reason is None:
            assert record["figures"]["samples_per_s"] > 0
        else:
            assert reason in record["reason"], record["reason"]
            assert record["phase"] in ("measure", "warmup")
            assert record["figures"]["samples_per_s"] is None
        if status == "failed":
            assert record["reason"].startswith("rank ")
    assert bench.wait_gone() == []
    assert bench.leftovers() == []
    rerun, _, err = here(*again)
    assert rerun == 3
    assert "nothing left to do" in err and "--retry" in err
    assert len(bench.records()) == len(EXPECTED)
    retried, _, _ = here(*again, "--retry", "oom")
    assert retried == 3
    assert [r["spec"]["variant"] for r in bench.records()].count("allocates") == 2


def test_exit_codes_of_nothing_but_failures_and_of_nothing_that_can_run(bench: Bench, here: Here) -> None:
    path = bench.write({"name": "none", "base": SYNTHETIC | {"variant": "raises"}})
    again = ("sweep", path, "--store", bench.store)
    assert here(*again)[0] == 3
    assert here(*again)[0] == 3, "and again, with nothing left to do"
    assert here(*again, "-o", "world_size=2", "-o", "parallelism=none")[0] == 4
