"""Volumes in TFRecords, as NVIDIA's UNet3D has them."""

from pathlib import Path
from typing import Any

import pytest
from tfrecord.writer import TFRecordWriter

from tests.storage.sources.made import arrays, refusal, same_volume, volume


class TestTfrecord:
    def write(self, path: Path, seed: int, **more: Any) -> Path:
        image, label = volume(seed)
        features: dict[str, Any] = {
            "X": (image.astype("<f4").tobytes(), "byte"),
            "X_shape": ((1, *image.shape), "int"),
            "Y": (label.astype("u1").tobytes(), "byte"),
            "Y_shape": ((1, *label.shape), "int"),
        }
        writer = TFRecordWriter(str(path))
        writer.write({name: value for name, value in (features | more).items() if value})
        writer.close()
        return path

    def test_content(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for seed in range(2):
            self.write(tmp_path / "in" / f"case_{seed}.tfrecord", seed)
        result = arrays(tmp_path / "in", "unet3d")
        assert all(same_volume(result[f"{seed:08d}"], *volume(seed)) for seed in range(2))

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"Y": None}, "no feature Y; found X, X_shape, Y_shape"),
            ({"X_shape": None}, "no feature X_shape"),
            ({"X_shape": ((1, 2, 3), "int")}, "X of shape (1, 2, 3): cannot reshape"),
            ({"X": (b"abc", "byte")}, "X of shape (1, 33, 34, 35): buffer size"),
        ],
    )
    def test_refused(self, tmp_path: Path, more: dict[str, Any], words: str) -> None:
        source = self.write(tmp_path / "a.tfrecord", 0, **more)
        message = refusal(source, "unet3d")
        assert message.startswith(f"{source}: record 0: ")
        assert words in message
