"""Transfers between stages, by a schedule's orders step by step."""

import pytest

from benchsuite.predict.theory import pipeline


def delayed_by_transfers(stages: int, microbatches: int, first_forward: bool) -> int:
    """Transfers by which a step of 1F1B (or GPipe) is longer, by its stages' orders: F = 1, B = 2, a transfer 1e-6."""

    def order(stage: int) -> list[tuple[str, int]]:
        ahead = microbatches if first_forward else min(stages - stage - 1, microbatches)
        forward, backward = [("F", k) for k in range(microbatches)], [("B", k) for k in range(microbatches)]
        turns = [one for k in range(microbatches) for one in (*forward[ahead + k : ahead + k + 1], backward[k])]
        return [*forward[:ahead], *turns]

    def step(transfer: float) -> float:
        ends: dict[tuple[str, int, int], float] = {}
        left, now = [order(stage) for stage in range(stages)], [0.0] * stages
        while any(left):
            for stage in range(stages):
                while left[stage]:
                    kind, k = left[stage][0]
                    last = kind == "B" and stage == stages - 1
                    before = (kind, k, stage - 1 if kind == "F" else stage + 1)
                    needed = ("F", k, stage) if last else before
                    if (kind, stage) != ("F", 0) and needed not in ends:
                        break
                    ready = 0.0 if (kind, stage) == ("F", 0) else ends[needed] + (0.0 if last else transfer)
                    now[stage] = max(now[stage], ready) + (1.0 if kind == "F" else 2.0)
                    ends[kind, k, stage] = now[stage]
                    left[stage].pop(0)
        return max(now)

    return round((step(1e-6) - step(0.0)) / 1e-6)


@pytest.mark.parametrize("first_forward", [False, True])
def test_hops_are_those_of_the_schedule_step_by_step(first_forward: bool):
    cases = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 5, 8, 16, 17)]
    found = pipeline.hops(*zip(*cases, strict=True), flushes=first_forward)
    assert found.tolist() == [delayed_by_transfers(p, m, first_forward) for p, m in cases]
