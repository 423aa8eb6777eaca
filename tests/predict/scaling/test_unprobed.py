"""Why probes were not used is told; where they were, nothing."""

from typing import Any

import pandas as pd
import pytest

from benchsuite.predict.scaling.exchange import why
from benchsuite.predict.scaling.from_store import from_series
from benchsuite.predict.theory.alpha_beta_fit import from_nccl_tests
from benchsuite.results.scaling.series import find_series
from tests.predict.scaling.test_from_store import probed
from tests.predict.theory.test_alpha_beta_fit import nccl_tests
from tests.results.scaled import frame, made_trial

FIGURES = {"wire_bytes_per_step": 150e6, "step_s_mean": 0.1, "backward_s": 0.05}
HEAD = "the probed collectives are not used: "


def said(found: dict[Any, Any], rows: list[dict[str, Any]], **figures: Any) -> list[str]:
    trials = [
        made_trial(n, 80.0 * n, figures={**FIGURES, **figures}, spec={"parallelism": "ddp", "device": "cpu"})
        for n in (1, 2, 4)
    ]
    (series,) = [one for one in find_series(frame(*trials), True) if one.kind == "weak"]
    return why(from_series(series, "s", found, None, False), series, pd.DataFrame(rows), found)


OK: dict[str, Any] = {"status": "ok", "caveats": []}


def test_probes_that_are_used_and_a_store_without_any():
    assert said(probed(2, 4), [OK] * 10) == []
    assert said({}, []) == []


def test_one_number_of_ranks_and_rows_that_were_left_out():
    rows = [OK, OK, {"status": "ok", "caveats": ["oversubscribed"]}, {"status": "failed", "caveats": []}]
    one = (
        "all_reduce was probed at 2 ranks alone, give two, none with more ranks than cores: probe comm --world-size 2,4"
    )
    assert said(probed(2), rows[:2]) == [f"{HEAD}{one}"]
    dropped = "left out of 4 probes: 1 is of more ranks than cores, 1 is not ok"
    assert said(probed(2), rows) == [f"{HEAD}{one}; {dropped}"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"backend": "nccl", "machine": "m"}, "none is of the backend, machine and nodes"),
        ({"nodes": 2}, "none is of the backend, machine and nodes of these trials (gloo on 2 nodes were probed)"),
        ({"op": "all_gather"}, "all_reduce in fp32 was not among them"),
        ({"dtype": "bf16"}, "all_reduce in fp32 was not among them"),
    ],
)
def test_probes_of_something_else(change: dict[str, Any], reason: str):
    (line,) = said({key._replace(**change): fitted for key, fitted in probed(2, 4).items()}, [OK] * 10)
    assert line.startswith(HEAD + reason)


def test_nothing_fitted_or_no_bytes():
    (line,) = said({}, [{"status": "ok", "caveats": ["oversubscribed"]}])
    assert line == (
        f"{HEAD}no probe of them could be fitted, which takes 3 sizes at least; left out of 1 probes: 1 is of "
        "more ranks than cores"
    )
    assert said(probed(2, 4), [OK], wire_bytes_per_step=None) == [
        f"{HEAD}the trials do not tell how many bytes they exchange"
    ]


def test_what_nccl_tests_found_is_used():
    """Programs of 2 and 4 ranks tell what a bucket takes; of one number of ranks they do not, and that is said."""
    rows = [made_trial(n, 80.0 * n, figures=FIGURES, spec={"parallelism": "ddp", "device": "cuda"}) for n in (1, 2, 4)]
    (series,) = [one for one in find_series(frame(*rows), True) if one.kind == "weak"]
    one, other = (from_nccl_tests(nccl_tests(ranks, 1), "out.txt") for ranks in (2, 4))
    used = from_series(series, "s", one | other, None, False)
    assert used.bucket_s is not None and why(used, series, pd.DataFrame(), one | other) == []
    (line,) = why(from_series(series, "s", one, None, False), series, pd.DataFrame(), one)
    assert line.startswith(f"{HEAD}all_reduce was probed at 2 ranks alone")
