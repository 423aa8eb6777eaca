"""The batch of DDP's overlap: as many rows as make backward take as long as the exchange."""

from collections.abc import Callable

import torch

from benchsuite.probe.comm import ddp_overlap
from benchsuite.probe.comm.ddp_overlap import MAX_BATCH, MIN_BATCH, balanced_batch

EXCHANGE_S, A_ROW_S = 0.1, 0.00125


class Clockwork:
    """Ranks whose exchange takes 100 ms, and a row 1.25 ms forward and as much backward; nothing is run."""

    def __init__(self, exchange_s: float) -> None:
        self.device, self.rank = torch.device("cpu"), 0
        self._exchange_s, self._asked = exchange_s, 0

    def most(self, value: float) -> float:
        return value

    def sample_s(self, _call: Callable[[], object], calls: int) -> float:
        self._asked += 1
        if self._asked <= 2:
            return self._exchange_s * calls
        turn, which = divmod(self._asked - 3, 4)
        rows = MIN_BATCH << turn
        return rows * A_ROW_S * (2 if which < 2 else 1) * calls


def test_backward_takes_about_as_long_as_the_exchange() -> None:
    found = balanced_batch(Clockwork(EXCHANGE_S), 1 << 20)  # type: ignore[arg-type]
    assert found & (found - 1) == 0, "a power of two"
    assert EXCHANGE_S / ddp_overlap.BALANCED <= found * A_ROW_S < 2 * EXCHANGE_S / ddp_overlap.BALANCED
    assert balanced_batch(Clockwork(0.0), 1 << 20) == MIN_BATCH  # type: ignore[arg-type]
    assert balanced_batch(Clockwork(1e9), 1 << 20) == MAX_BATCH  # type: ignore[arg-type]
