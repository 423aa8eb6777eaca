"""`--on-error skip`: what cannot be read is left out, counted and listed with its reason, up to a limit."""

import json
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchsuite.storage.create.convert import SKIPPED, Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats.tokens import read_index
from benchsuite.storage.sources import ReadOptions, open_source
from benchsuite.storage.sources.skips import MaxErrors, max_errors
from tests.storage.samples import VOLUME_PARAMS, flip, jpeg
from tests.storage.sources.made import converted, tar
from tests.storage.sources.test_sequences import pair
from tests.storage.sources.test_tables import record, tfrecord


def skipping(source: Path, most: str, form: str = "files") -> list[str]:
    """The lines of the list that a conversion writes; what it has made verifies."""
    target = source.parent / "set"
    convert_dataset(source, target, Wanted("resnet50", "tiny", form), options=ReadOptions(max_errors=max_errors(most)))
    made = verify_dataset(target).manifest
    lines = (target / SKIPPED).read_text().splitlines() if (target / SKIPPED).exists() else []
    assert made.created["skipped_samples"] == len(lines)
    return lines


def photos(folder: Path, count: int, *bad: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03d}.jpg").write_bytes(b"no image" if number in bad else jpeg(number % 5))
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1%", MaxErrors("0.1%", share=Fraction(1, 1000))),
        ("100%", MaxErrors("100%", share=Fraction(1))),
        ("20", MaxErrors("20", number=20)),
        (" 0 ", MaxErrors("0")),
    ],
)
def test_how_many(text: str, expected: MaxErrors) -> None:
    assert max_errors(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "101%", "-1%", "%", "1/0%", "nan%", "²"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: a share of the samples such as 0\.1%, or a number such as 20"):
        max_errors(text)


@pytest.mark.parametrize("form", ["files", "webdataset", "hdf5"])
def test_images_of_a_folder(tmp_path: Path, form: str) -> None:
    source = photos(tmp_path / "in", 40, 3, 30)
    (source / "040.webp").write_bytes(jpeg(0))
    first, second, third = skipping(source, "3", form)
    assert first.startswith(f"{source / '003.jpg'}: not a whole JPEG: ")
    assert second.startswith(f"{source / '030.jpg'}: not a whole JPEG: ")
    assert third == f"{source / '040.webp'}: images of this sort are not read; allowed: .jpg, .jpeg, .png"


def test_images_of_a_tar(tmp_path: Path) -> None:
    members = [(f"{number}.jpg", jpeg(number)) for number in range(6)]
    source = tar(tmp_path / "a.tar", [*members, ("6.jpg", b"none"), ("7.webp", b"x"), ("8.cls", b"1")])
    assert skipping(source, "50%") == [
        f"{source}: 7.webp: images of this sort are not read; allowed: .jpg, .jpeg, .png",
        f"{source}: sample '8' has a .cls and no image",
        f"{source}: sample '6': neither a JPEG nor a PNG",
    ]


def test_where_all_is_whole_there_is_no_list(tmp_path: Path) -> None:
    assert skipping(photos(tmp_path / "in", 3), "50%") == []
    assert not (tmp_path / "set" / SKIPPED).exists()


@pytest.mark.parametrize(("most", "allowed"), [("1", 1), ("3%", 1), ("0.1%", 0)])
def test_more_than_the_limit_are_refused(tmp_path: Path, most: str, allowed: int) -> None:
    source = photos(tmp_path / "in", 60, 3, 30, 50)
    with pytest.raises(Damage) as raised:
        skipping(source, most)
    limit, *reasons = raised.value.told
    assert limit == f"--max-errors {most} leaves out at most {allowed} of 60 samples, and more cannot be read"
    assert len(reasons) == allowed + 1 and reasons[0].startswith(f"{source / '003.jpg'}: not a whole JPEG")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_classes_keep_their_numbers(tmp_path: Path) -> None:
    """Of a class that is left out as a whole, too."""
    for number, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "0.jpg").write_bytes(b"none" if name == "bee" else jpeg(number))
    skipping(tmp_path / "in", "1")
    assert verify_dataset(tmp_path / "set").index["label"].tolist() == [0, 2]


def test_a_name_cannot_forge_a_line(tmp_path: Path) -> None:
    source = photos(tmp_path / "in", 3)
    (source / "a\nb.jpg").write_bytes(b"none")
    (source / "c\udcff.jpg").write_bytes(jpeg(1))
    first, second = skipping(source, "2")
    assert first.startswith(f"{source}/a\\nb.jpg: not a whole JPEG")
    assert second.endswith("c\\xff.jpg': the file's name is not UTF-8; rename it")


def test_volumes_without_a_partner_or_of_another_shape(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        volume = np.zeros((9, 9, 9), np.float32)
        np.save(source / f"{number}_x.npy", volume)
        if number != 2:
            np.save(source / f"{number}_y.npy", volume[: 9 - (number == 1)].astype(np.uint8))
    options = ReadOptions(max_errors=max_errors("50%"))
    opened = open_source(source, "volume", VOLUME_PARAMS, options)
    assert [sample.key for sample in opened.samples] == ["0", "3"]
    assert opened.skipped is not None
    first, second = opened.skipped
    assert first == f"{source / '2_x.npy'}: its label 2_y.npy is missing"
    assert second.startswith(f"{source / '1_x.npy'} with 1_y.npy: the image has shape")


def test_samples_of_an_hdf5_file_and_windows_of_a_stream(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", (3,), h5py.vlen_dtype(np.uint8))
        for number in range(3):
            images[number] = np.frombuffer(b"none" if number == 1 else jpeg(number), np.uint8)
        file["labels"] = np.arange(3)
    assert skipping(tmp_path / "a.h5", "1") == [f"{tmp_path / 'a.h5'}: sample 1: neither a JPEG nor a PNG"]
    path = pair(tmp_path / "text", np.array([1, 2, 3, 99, 5, 6, 7, 8, 9]))
    opened = open_source(path, "tokens", {"seq_len": 2, "vocab_size": 50}, ReadOptions(max_errors=max_errors("50%")))
    assert [sample.key for sample in opened.samples] == ["00000000", "00000002", "00000003"]


@pytest.mark.parametrize("form", ["files", "tokens"])
def test_windows_with_ids_that_the_vocabulary_lacks(tmp_path: Path, form: str) -> None:
    """With each go 128 tokens of the stream, and of the documents that have them; the next one goes on behind them."""
    tokens = np.random.default_rng(0).integers(0, 512, 128 * 7 + 1)
    tokens[[200, 3 * 128, 5 * 128 + 1, 6 * 128 + 1]] = [-1, 512, 513, 9999]
    source = pair(tmp_path / "a", tokens, "i4", documents=3)
    dataset = converted(source, "gpt_neox", form, most="60%")
    stored = {sample.key: sample.fields["tokens"].tolist() for sample in in_order(dataset)}
    parts = {number: tokens[128 * number + 1 : 128 * number + 129].tolist() for number in (0, 3, 4)}
    assert stored == {
        "00000000": [int(tokens[0]), *parts[0]],
        "00000003": [parts[0][-1], *parts[3]],
        "00000004": [parts[3][-1], *parts[4]],
    }
    assert (dataset.folder / SKIPPED).read_text().splitlines() == [
        f"{source}.bin: window {number} (from token {128 * number}): tokens holds {value}, "
        "needed: 0..511 (vocab_size 512)"
        for number, value in ((1, -1), (2, 512), (5, 513), (6, 9999))
    ]
    if form == "tokens":
        index = read_index(dataset.folder / "tokens.idx")
        assert (index.lengths.tolist(), index.documents.tolist()) == ([129, 213, 43], [0, 1, 2, 3])


def test_text_whose_tokens_the_vocabulary_lacks(tmp_path: Path) -> None:
    """One of 65,800 would be 264 in the type that smaller ones are stored as."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("be " * 200)
    (tmp_path / "in" / "b.txt").write_text("be " * 100 + "rare " + "be " * 200)
    facts = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    facts["model"] = {"type": "WordLevel", "vocab": {"be": 7, "rare": 65_800}, "unk_token": "be"}
    (tmp_path / "words.json").write_text(json.dumps(facts))
    dataset = converted(tmp_path / "in", "gpt_neox", "tokens", str(tmp_path / "words.json"), most="1")
    assert (dataset.folder / SKIPPED).read_text() == (
        f"{tmp_path / 'in' / 'b.txt'}: window 2 (from token 256): tokens holds 65800, needed: 0..511 (vocab_size 512)\n"
    )
    assert [sample.fields["tokens"].tolist() for sample in in_order(dataset)] == [
        [7] * 129,
        [*[7] * 72, 0, *[7] * 56],
    ]
    assert read_index(dataset.folder / "tokens.idx").lengths.tolist() == [201, 56]


def test_records_whose_checksum_is_wrong(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecords", [record(jpeg(number), number) for number in range(4)])
    content = source.read_bytes()
    flip(source, content.index(jpeg(2)) + 100)
    assert skipping(source, "1") == [f"{source}: record 2: its CRC is wrong: damaged"]


def test_a_dataset_has_all_or_none(tmp_path: Path) -> None:
    skipping(photos(tmp_path / "in", 3), "1")
    with pytest.raises(DatasetError, match="a dataset, whose samples are all or none; leave out --on-error skip"):
        convert_dataset(
            tmp_path / "set",
            tmp_path / "other",
            Wanted("resnet50", "tiny", "files"),
            options=ReadOptions(max_errors=max_errors("1")),
        )
