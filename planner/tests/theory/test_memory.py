"""Model states and activations against published figures and sums over tensors by hand."""

from typing import Any

import pytest

from benchsuite_plan.theory import memory
from benchsuite_plan.theory.memory import GIB, MODES, activation_bytes_per_layer, state_bytes, zero_bytes
from tests.helpers.published_tables import all_rows

ZERO = [
    # data parallel, GB at stages 0 to 3
    (1, 120.0, 120.0, 120.0, 120.0),
    (4, 120.0, 52.5, 41.25, 30.0),
    (16, 120.0, 35.625, 21.5625, 7.5),
    (64, 120.0, 31.4062, 16.6406, 1.875),
    (256, 120.0, 30.3516, 15.4102, 0.4688),
    (1024, 120.0, 30.0879, 15.1025, 0.1172),
]
"""Rajbhandari et al. 2020 (arXiv:1910.02054), table 1, of 7.5e9 parameters; figure 1 prints the row of 64."""
KORTHIKANTI_FIGURE_1 = [
    # hidden, heads, layers, stages, interleave, microbatch, GiB of states, of activations with tp, with tp_sp_selective
    (6144, 64, 48, 1, 1, 4, 45.5625, 59.25, 9.5625),
    (20480, 128, 105, 35, 3, 1, 31.640625, 114.0234375, 23.076171875),
]
"""Korthikanti et al. 2022 (arXiv:2205.05198), figure 1; t = 8, s = 2048, V = 51200."""
KORTHIKANTI_FIGURE_7 = [
    # hidden, heads, microbatch, % of tp: tp_sp, tp_selective, tp_sp_selective, full
    (6144, 64, 4, 66.84, 49.42, 16.18, 7.64),
    (20480, 128, 1, 58.31, 62.04, 20.27, 9.42),
]


class TestModelStates:
    @pytest.mark.parametrize("row", ZERO)
    def test_zero(self, row: tuple[float, ...]) -> None:
        found = [float(zero_bytes(params=7.5e9, data_parallel=row[0], stage=stage)) / 1e9 for stage in range(4)]
        assert found == pytest.approx(row[1:], abs=5.1e-5)

    def test_zero_all_rows(self) -> None:
        rows = [tuple(row.values())[1:] for row in all_rows("zero_memory")]
        for row in rows:
            self.test_zero(row)
        assert len(rows) == len(ZERO)

    def test_stages_shard_optimizer_then_gradients_then_weights(self) -> None:
        """8 parameters over 4 devices: 16 of weights, 16 of gradients, 96 of Adam's."""
        found = [zero_bytes(8, 4, stage) for stage in range(4)]
        assert found == [16 + 16 + 96, 16 + 16 + 24, 16 + 4 + 24, 4 + 4 + 24]
        assert zero_bytes(8, 4, 1, optimizer_bytes_per_param=4) == 16 + 16 + 8
        assert zero_bytes(8, [[1], [4]], range(4)).tolist() == [[128] * 4, found]

    def test_slides(self) -> None:
        """1e9 parameters at 16 bytes: 14.90 GiB (printed as GB); 3e9: 48 GB; 175e9 in fp16 and fp32 alone."""
        assert zero_bytes(1e9, 1, 0) / GIB == pytest.approx(14.901, abs=5e-4)
        assert zero_bytes(3e9, 1, 0) == 48e9
        assert zero_bytes(175e9, 1, 0, optimizer_bytes_per_param=0) / 2 == 350e9
        assert state_bytes(175e9, 1, 0, 4, 4, 0) / 2 / GIB == pytest.approx(651.926, abs=5e-4)

    def test_fp32(self) -> None:
        """Adam in fp32 has 16 bytes a parameter too; plain SGD 8."""
        assert state_bytes(100, 1, 0, 4, 4, 8) == 1600
        assert state_bytes(100, 1, 0, 4, 4, 0) == 800
        assert [state_bytes(100, 4, stage, 4, 4, 8) for stage in range(4)] == [1600, 1000, 700, 400]

    def test_megatron(self) -> None:
        """fp32 gradients: 2 + 4 + 12; with the optimizer over 4 devices 2 + 4 + 3."""
        assert state_bytes(100, 4, 0, 2, 4, 12) == 1800
        assert state_bytes(100, [1, 4], 1, 2, 4, 12).tolist() == [1800, 900]

    @pytest.mark.parametrize(
        ("given", "line"),
        [
            ((7e9, 0, 1), "data_parallel 0 is not allowed; allowed: a whole number, 1 or above"),
            ((7e9, 1.5, 1), "data_parallel 1.5 is not allowed; allowed: a whole number, 1 or above"),
            ((-1, 1, 1), "params -1 is not allowed; allowed: a finite number above 0"),
            ((7e9, 1, 4), "stage 4 is unknown; allowed: 0, 1, 2, 3"),
        ],
    )
    def test_refuses(self, given: tuple[Any, ...], line: str) -> None:
        with pytest.raises(ValueError) as error:
            zero_bytes(*given)
        assert str(error.value).startswith(line)


class TestActivations:
    @pytest.mark.parametrize("row", KORTHIKANTI_FIGURE_1)
    def test_figure_1(self, row: tuple[float, ...]) -> None:
        hidden, heads, layers, stages, interleave, batch, states, tp, least = row
        params = 12 * layers * hidden**2 / (8 * stages)
        assert state_bytes(params, 1, 0, 2, 4, 12) / GIB == pytest.approx(states, rel=1e-9)
        more = layers * memory.interleave_factor(stages, interleave)
        kept = [activation_bytes_per_layer(batch, 2048, hidden, heads, 8, mode) for mode in ("tp", "tp_sp_selective")]
        found = [more * layer / GIB for layer in kept]
        assert found == pytest.approx([tp, least], rel=1e-9)

    def test_figure_1_all_rows(self) -> None:
        names = ("hidden", "heads", "layers", "pp", "interleave_v", "microbatch")
        rows = all_rows("korthikanti_fig1_memory")
        for row in rows:
            assert row["tp"] == 8
            self.test_figure_1((*(row[name] for name in names), *list(row.values())[-3:]))
        assert len(rows) == 2

    @pytest.mark.parametrize("row", KORTHIKANTI_FIGURE_7)
    def test_figure_7(self, row: tuple[float, ...]) -> None:
        hidden, heads, batch, *percent = row
        found = [
            activation_bytes_per_layer(batch, 2048, hidden, heads, 8, mode)
            for mode in ("tp", "tp_sp", "tp_selective", "tp_sp_selective", "full")
        ]
        assert percent == pytest.approx([100 * size / found[0] for size in found[1:]], rel=0.011)

    def test_figure_7_all_rows(self) -> None:
        shapes = {"22B": (6144, 64, 4), "530B": (20480, 128, 1)}
        for row in all_rows("korthikanti_fig7_pct"):
            self.test_figure_7((*shapes[row["model"]], *list(row.values())[2:]))

    def test_is_the_sum_of_what_is_kept(self) -> None:
        """One layer, one sample, s = 4, h = 8, 2 heads, t = 2, tensor by tensor (section 4.1 of the paper)."""
        sbh, scores = 4 * 8, 2 * 4 * 4
        around_attention = 2 * sbh  # norm's input
        into_attention = 2 * sbh  # of the projections
        split_attention = (2 * 2 * sbh + 2 * sbh) / 2  # query and key; value
        split_scores = (2 * scores + 2 * scores + scores) / 2  # softmax, its dropout's output, the mask
        after_attention = 2 * sbh / 2 + sbh  # projection's input, split by heads; dropout mask
        mlp = 2 * sbh + 2 * sbh + (2 * 4 * sbh + 2 * 4 * sbh) / 2 + sbh  # norm, up, GeLU and down, dropout mask
        total = around_attention + into_attention + split_attention + split_scores + after_attention + mlp
        assert activation_bytes_per_layer(1, 4, 8, 2, 2, "tp") == total
        assert activation_bytes_per_layer(1, 4, 8, 2, 2, "tp_selective") == total - split_scores
        assert activation_bytes_per_layer(1, 4, 8, 2, 2, "tp", flash_attention=True) == total - split_scores
        assert activation_bytes_per_layer(1, 4, 8, 2, 2, "full") == 2 * sbh

    def test_forms(self) -> None:
        s, b, h, a, t = 2048, 3, 5120, 40, 4
        sbh, scores = s * b * h, 5 * a * s / h
        expected = {
            "none": sbh * (34 + scores),
            "tp": sbh * (10 + 24 / t + scores / t),
            "tp_sp": sbh / t * (34 + scores),
            "tp_selective": sbh * (10 + 24 / t),
            "tp_sp_selective": 34 * sbh / t,
            "full": 2 * sbh,
        }
        assert set(expected) == set(MODES)
        for mode, size in expected.items():
            found = activation_bytes_per_layer(
                batch_size=b, seq_len=s, hidden_size=h, num_heads=a, tensor_parallel=t, mode=mode
            )
            assert found == pytest.approx(size, rel=1e-12), mode

    @pytest.mark.parametrize("mode", MODES)
    def test_one_tensor_parallel_rank_is_none(self, mode: str) -> None:
        found = activation_bytes_per_layer(2, 128, 64, 4, 1, mode)
        whole = activation_bytes_per_layer(2, 128, 64, 4, 1, "none")
        flash = activation_bytes_per_layer(2, 128, 64, 4, 1, "none", flash_attention=True)
        assert found == (2 * 128 * 64 * 2 if mode == "full" else flash if "selective" in mode else whole)

    def test_arrays(self) -> None:
        found = activation_bytes_per_layer([1, 2], 128, 64, 4, [[1], [2], [4]], "tp")
        assert found.shape == (3, 2) and found[2, 1] == activation_bytes_per_layer(2, 128, 64, 4, 4, "tp")

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match=r"mode 'sp_tp' is unknown; nearest: tp; allowed: none, tp, tp_sp, .*"):
            activation_bytes_per_layer(1, 8, 8, 2, 1, "sp_tp")
        with pytest.raises(ValueError, match="num_heads 0 is not allowed"):
            activation_bytes_per_layer(1, 8, 8, 0, 1, "tp")

    def test_interleaving_keeps_more(self) -> None:
        assert memory.interleave_factor(8, [1, 2, 4]).tolist() == [1, 1 + 7 / 16, 1 + 7 / 32]
