"""Volumes: pairs of .npy, .npz, NIfTI and HDF5."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest

from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.sources import open_source
from tests.helpers.snapshots import compare_messages
from tests.storage.sources.made import arrays, npy, refusal, same_volume, volume

FORMS = ["files", "webdataset", "hdf5", "lmdb", "tfrecord"]
SMALL = (4, 5, 6)


def save(folder: Path, **values: np.ndarray) -> Path:
    for name, array in values.items():
        path = folder / f"{name.replace('__', '/')}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return folder


class TestNpyPairs:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("suffixes", [("x", "y"), ("image", "label")])
    def test_content(self, tmp_path: Path, form: str, suffixes: tuple[str, str]) -> None:
        volumes = {name: volume(seed) for seed, name in enumerate(["case_0", "deep/case_1"])}
        for name, pair in volumes.items():
            for suffix, values in zip(suffixes, pair, strict=True):
                save(tmp_path / "in", **{f"{name.replace('/', '__')}_{suffix}": values})
        save(tmp_path / "in", mean_of_all=np.zeros(3))
        result = arrays(tmp_path / "in", "unet3d", form)
        assert set(result) == set(volumes)
        assert all(same_volume(result[name], *pair) for name, pair in volumes.items())

    @pytest.mark.parametrize("label", [np.bool_, np.int8, np.float64, ">i4"])
    def test_types_and_orders(self, tmp_path: Path, label: Any) -> None:
        image, labels = volume(3, SMALL)
        labels = labels % 2
        save(tmp_path / "in", a_x=np.asfortranarray(image.astype(">f8"))[None], a_y=labels.astype(label)[None])
        assert same_volume(arrays(tmp_path / "in", "unet3d")["a"], image, labels)

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "shapes that differ": (np.zeros(SMALL), np.zeros((4, 5, 7))),
            "two channels": (np.zeros((2, *SMALL)), np.zeros((2, *SMALL))),
            "two dimensions": (np.zeros((5, 6)), np.zeros((5, 6))),
            "an empty dimension": (np.zeros((0, 5, 6)), np.zeros((0, 5, 6))),
            "a label of 256": (np.zeros(SMALL), np.full(SMALL, 256)),
            "a label of -1": (np.zeros(SMALL), np.full(SMALL, -1)),
            "a label of a half": (np.zeros(SMALL), np.full(SMALL, 0.5)),
            "a label of nan": (np.zeros(SMALL), np.full(SMALL, np.nan)),
            "a complex image": (np.zeros(SMALL, complex), np.zeros(SMALL)),
            "a label of text": (np.zeros(SMALL), np.full(SMALL, "x")),
        }

        def message(image: np.ndarray, label: np.ndarray) -> str:
            source = save(tmp_path / "in", a_x=image, a_y=label)
            message = refusal(source, "unet3d")
            assert message.startswith(f"{source / 'a_x.npy'} with a_y.npy: ")
            return message

        compare_messages("volumes_npy", cases, message, {str(tmp_path): "FOLDER"})

    @pytest.mark.parametrize(("lone", "lacking", "other"), [("a_x", "label", "a_y"), ("a_label", "image", "a_image")])
    def test_a_missing_partner(self, tmp_path: Path, lone: str, lacking: str, other: str) -> None:
        source = save(tmp_path / "in", **{lone: np.zeros(SMALL)})
        assert refusal(source, "unet3d") == f"{source / lone}.npy: its {lacking} {other}.npy is missing"

    def test_pickles_are_not_loaded(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in", a_y=np.zeros(SMALL))
        np.save(source / "a_x.npy", np.array([{}], object), allow_pickle=True)
        assert refusal(source, "unet3d").startswith(f"{source / 'a_x.npy'}: holds pickled objects")

    def test_cut(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in", a_x=np.zeros(SMALL), a_y=np.zeros(SMALL))
        (source / "a_y.npy").write_bytes(npy(np.zeros(SMALL))[:-1])
        message = refusal(source, "unet3d")
        assert message.startswith(f"{source / 'a_y.npy'}: ")
        assert "truncated" in message

    def test_nothing_that_fits(self, tmp_path: Path) -> None:
        message = refusal(save(tmp_path / "in", a=np.zeros(3), b=np.zeros(3)), "unet3d")
        assert "no volume data: looked for pairs *_x.npy/*_y.npy" in message
        assert message.endswith("found .npy (2)")


class TestNpz:
    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_content(self, tmp_path: Path, write: Callable[..., None]) -> None:
        (tmp_path / "in").mkdir()
        for seed in range(2):
            write(tmp_path / "in" / f"{seed}.npz", x=volume(seed)[0], y=volume(seed)[1])
        result = arrays(tmp_path / "in", "unet3d")
        assert all(same_volume(result[str(seed)], *volume(seed)) for seed in range(2))
        assert same_volume(arrays(tmp_path / "in" / "1.npz", "unet3d")["1"], *volume(1))

    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_named_image_and_label(self, tmp_path: Path, write: Callable[..., None]) -> None:
        """As in pairs of .npy, tars and HDF5."""
        write(tmp_path / "a.npz", label=volume(0)[1], image=volume(0)[0], spacing=np.ones(3))
        assert same_volume(arrays(tmp_path / "a.npz", "unet3d")["a"], *volume(0))

    @pytest.mark.parametrize(
        ("found", "lacking"),
        [({"x": 1}, "y"), ({"label": 1}, "image"), ({"arr_0": 1, "arr_1": 1}, "x"), ({"image": 1, "y": 1}, "x")],
    )
    def test_what_is_lacking_and_what_is_there(self, tmp_path: Path, found: dict[str, int], lacking: str) -> None:
        source = tmp_path / "a.npz"
        np.savez(source, **{name: np.zeros(SMALL) for name in found})
        needed = "needed: x and y, or image and label"
        assert refusal(source, "unet3d") == f"{source}: no array {lacking}; {needed}; found {', '.join(found)}"

    def test_refused(self, tmp_path: Path) -> None:
        source = tmp_path / "a.npz"
        np.savez(source, x=np.zeros(SMALL), y=np.zeros(SMALL))
        source.write_bytes(source.read_bytes()[:-30])
        assert refusal(source, "unet3d").startswith(f"{source}: not a whole .npz file")


def nifti(path: Path, values: np.ndarray, slope: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, np.diag([2.0, 0.8, 0.8, 1]))
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    nibabel.save(image, path)
    return path


class TestNifti:
    @pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
    def test_kits(self, tmp_path: Path, suffix: str) -> None:
        for case in range(2):
            image, label = volume(case)
            nifti(tmp_path / "in" / f"case_{case:05d}" / f"imaging{suffix}", image)
            nifti(tmp_path / "in" / f"case_{case:05d}" / f"segmentation{suffix}", label)
        result = arrays(tmp_path / "in", "unet3d")
        assert list(result) == ["case_00000", "case_00001"]
        assert all(same_volume(result[f"case_{case:05d}"], *volume(case)) for case in range(2))
        (tmp_path / "one").mkdir()
        (tmp_path / "in" / "case_00001").rename(tmp_path / "one" / "case_00001")
        assert same_volume(arrays(tmp_path / "one" / "case_00001", "unet3d")["case_00001"], *volume(1))

    @pytest.mark.parametrize("channel", ["", "_0000"])
    def test_decathlon(self, tmp_path: Path, channel: str) -> None:
        for case, suffix in (("liver_1", ".nii.gz"), ("liver_22", ".nii")):
            image, label = volume(len(case))
            nifti(tmp_path / "in" / "imagesTr" / f"{case}{channel}{suffix}", image)
            nifti(tmp_path / "in" / "labelsTr" / f"{case}.nii.gz", label.astype(np.float32))
        (tmp_path / "in" / "imagesTr" / "._liver_1.nii.gz").write_bytes(b"left by another system")
        (tmp_path / "in" / "dataset.json").write_text("{}")
        result = arrays(tmp_path / "in", "unet3d", "hdf5")
        assert set(result) == {"liver_1", "liver_22"}
        assert all(same_volume(result[case], *volume(len(case))) for case in result)

    def test_intensities_are_scaled_as_the_header_says(self, tmp_path: Path) -> None:
        values, _ = volume(0, SMALL)
        nifti(tmp_path / "in" / "a" / "imaging.nii.gz", values, slope=0.5)
        nifti(tmp_path / "in" / "a" / "segmentation.nii.gz", np.zeros(SMALL, np.uint8))
        assert same_volume(arrays(tmp_path / "in", "unet3d")["a"], values * 0.5, np.zeros(SMALL))

    def test_a_missing_partner(self, tmp_path: Path) -> None:
        lone = nifti(tmp_path / "kits" / "case_00210" / "imaging.nii.gz", volume(0, SMALL)[0])
        assert refusal(tmp_path / "kits", "unet3d").startswith(f"{lone}: its label case_00210/segmentation")
        lone = nifti(tmp_path / "image" / "imagesTr" / "a.nii.gz", volume(0, SMALL)[0])
        assert refusal(tmp_path / "image", "unet3d") == f"{lone}: its label labelsTr/a.nii.gz is missing"
        lone = nifti(tmp_path / "label" / "labelsTr" / "a.nii.gz", volume(0, SMALL)[1])
        assert refusal(tmp_path / "label", "unet3d") == f"{lone}: its image imagesTr/a.nii.gz is missing"

    def test_all_missing_partners_are_told_at_once(self, tmp_path: Path) -> None:
        """KiTS19 has 90 cases without a segmentation."""
        lone = [nifti(tmp_path / "kits" / f"case_0021{n}" / "imaging.nii.gz", volume(0, SMALL)[0]) for n in range(2)]
        nifti(tmp_path / "kits" / "case_00000" / "imaging.nii.gz", volume(0, SMALL)[0])
        nifti(tmp_path / "kits" / "case_00000" / "segmentation.nii.gz", volume(0, SMALL)[1])
        for suffix in ("a_x", "b_y"):
            save(tmp_path / "npy", **{suffix: np.zeros(SMALL)})
        with pytest.raises(Damage) as kits:
            open_source(tmp_path / "kits", "volume", {})
        assert [line.partition(": ")[0] for line in kits.value.told] == [str(path) for path in lone]
        with pytest.raises(Damage) as npys:
            open_source(tmp_path / "npy", "volume", {})
        assert npys.value.count == 2

    def test_several_channels(self, tmp_path: Path) -> None:
        for channel in range(2):
            path = nifti(tmp_path / "in" / "imagesTr" / f"a_000{channel}.nii.gz", volume(0, SMALL)[0])
        nifti(tmp_path / "in" / "labelsTr" / "a.nii.gz", volume(0, SMALL)[1])
        assert refusal(tmp_path / "in", "unet3d").startswith(f"{path}: another channel of case a")

    @pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
    @pytest.mark.parametrize("share", [0, 0.1, 0.7])
    @pytest.mark.parametrize("name", ["imaging", "segmentation"])
    def test_cut(self, tmp_path: Path, suffix: str, share: float, name: str) -> None:
        for part, values in zip(("imaging", "segmentation"), volume(0), strict=True):
            nifti(tmp_path / "in" / "a" / f"{part}{suffix}", values)
        path = tmp_path / "in" / "a" / f"{name}{suffix}"
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert refusal(tmp_path / "in", "unet3d").startswith(f"{path}: not a whole NIfTI file: ")

    @pytest.mark.parametrize("place", [40, 70, 108])
    def test_a_damaged_header(self, tmp_path: Path, place: int) -> None:
        for part, values in zip(("imaging", "segmentation"), volume(0, SMALL), strict=True):
            path = nifti(tmp_path / "in" / "a" / f"{part}.nii", values)
        content = bytearray(path.read_bytes())
        content[place : place + 4] = b"\x7f\x7f\x7f\x7f"
        path.write_bytes(content)
        assert str(path.parent) in refusal(tmp_path / "in", "unet3d")


class TestHdf5:
    def test_groups_at_any_depth(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        names = {"a": ("image", "label"), "deep/b.1": ("x", "y"), "deep/c": ("image", "label")}
        with h5py.File(tmp_path / "in" / "1.h5", "w") as file:
            file["notes"] = [1, 2]
            for seed, (group, parts) in enumerate(names.items()):
                for part, values in zip(parts, volume(seed), strict=True):
                    file.create_dataset(f"{group}/{part}", data=values, compression="gzip")
        with h5py.File(tmp_path / "in" / "root.h5", "w") as file:
            file["image"], file["label"] = volume(9)
        result = arrays(tmp_path / "in", "unet3d")
        assert set(result) == {"a", "deep/b_1", "deep/c", "root"}
        assert all(same_volume(result[key], *volume(n)) for n, key in enumerate(["a", "deep/b_1", "deep/c"]))
        assert same_volume(result["root"], *volume(9))

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "an image alone": {"a/image": np.zeros(SMALL)},
            "a label alone": {"a/y": np.zeros(SMALL)},
            "shapes that differ": {"a/x": np.zeros(SMALL), "a/y": np.zeros((3, 3, 3))},
            "no group": {"a": np.zeros(SMALL)},
            "a link to another file": {"a/x": h5py.ExternalLink("b.h5", "/x"), "a/y": np.zeros(SMALL)},
            "two groups of one key": {name: np.zeros(SMALL) for name in ("a.b/x", "a.b/y", "a_b/x", "a_b/y")},
        }

        def message(content: dict[str, Any]) -> str:
            source = tmp_path / "a.h5"
            with h5py.File(source, "w") as file:
                for name, values in content.items():
                    file[name] = values
            message = refusal(source, "unet3d")
            assert message.startswith(f"{source}: ")
            return message

        compare_messages("volumes_hdf5", cases, message, {str(tmp_path): "FOLDER"})


class TestSpaceThatIsNeeded:
    """The check of the disk must count what is stored, not what users' files take."""

    SHAPE = (40, 41, 42)

    def check(self, source: Path) -> None:
        stored = 5 * 40 * 41 * 42
        assert sum(path.stat().st_size for path in source.rglob("*")) < stored
        assert open_source(source, "volume", {}).size_bytes == stored

    def zeros(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(self.SHAPE, np.int8), np.zeros(self.SHAPE, np.uint8)

    def test_npy(self, tmp_path: Path) -> None:
        image, label = self.zeros()
        self.check(save(tmp_path, a_x=np.asfortranarray(image)[None], a_y=label[None]))

    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_npz(self, tmp_path: Path, write: Callable[..., None]) -> None:
        image, label = self.zeros()
        write(tmp_path / "a.npz", y=label, x=image, mean=np.zeros(3))
        self.check(tmp_path)

    @pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
    def test_nifti(self, tmp_path: Path, suffix: str) -> None:
        for name, values in zip(("imaging", "segmentation"), self.zeros(), strict=True):
            nifti(tmp_path / "a" / f"{name}{suffix}", values.astype(np.uint8))
        self.check(tmp_path)

    def test_hdf5(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, values in zip(("x", "y"), self.zeros(), strict=True):
                file.create_dataset(f"a/{name}", data=values, compression="gzip")
        self.check(tmp_path)

    def test_a_compressed_source_too_large_for_the_disk_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        image, label = self.zeros()
        np.savez_compressed(tmp_path / "a.npz", x=image, y=label)
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * image.size - 1))
        assert "its disk has" in refusal(tmp_path / "a.npz", "unet3d")

    def test_damaged_files_are_told_by_reading_them(self, tmp_path: Path) -> None:
        header = npy(np.zeros(SMALL)).replace(b"(4, 5, 6)", b"(4, 5, 6)".replace(b"4", b"4" * 12))
        save(tmp_path, a_y=np.zeros(SMALL))
        (tmp_path / "a_x.npy").write_bytes(header)
        assert open_source(tmp_path, "volume", {}).size_bytes <= 5 * len(header)
        (tmp_path / "a_x.npy").write_bytes(b"")
        assert open_source(tmp_path, "volume", {}).size_bytes == 0


def test_linked_case_folders_are_followed(tmp_path: Path) -> None:
    for part, values in zip(("imaging", "segmentation"), volume(0), strict=True):
        nifti(tmp_path / "store" / f"{part}.nii.gz", values)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "case_00000").symlink_to(tmp_path / "store")
    assert same_volume(arrays(tmp_path / "in", "unet3d")["case_00000"], *volume(0))
    (tmp_path / "store" / "back").symlink_to(tmp_path / "in")
    assert "a link to" in refusal(tmp_path / "in", "unet3d")
