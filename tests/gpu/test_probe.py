"""`probe device` on a device: what is possible, compared with what is stated; and a product that is wrong."""

import pytest
import torch

from benchsuite.analysis.device_peaks import peak_flops
from benchsuite.contract.errors import UserError
from benchsuite.probe import device as probe

DEVICE = torch.device("cuda:0")


def test_every_figure_is_below_its_peak() -> None:
    cells = {cell.name: cell for cell in probe.measured(DEVICE, 0.05)}
    assert cells.keys() == {
        *(f"gemm_{precision}_tflops" for precision in ("fp32", "tf32", "bf16", "fp16")),
        *("memory_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s"),
    }
    assert all(cell.of_peak is None or 0.2 < cell.of_peak < 1.05 for cell in cells.values())
    if peak_flops(probe.name_of(DEVICE), "bf16"):
        assert cells["gemm_bf16_tflops"].of_peak is not None
    assert cells["memory_bytes_per_s"].median > cells["h2d_bytes_per_s"].median


def test_a_device_that_computes_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.mm

    def wrong(one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return product(one, other, out=out).mul_(1.5)

    monkeypatch.setattr(torch, "mm", wrong)
    with pytest.raises(UserError, match="cuda:0 computes wrongly"):
        probe.measured(DEVICE, 0.01)
