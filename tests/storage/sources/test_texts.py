"""Text as bytes and by a tokenizer, in windows."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.formats.tokens import read_index
from tests.storage.sources.made import arrays, converted, refusal

LENGTH = 128


def prose(seed: int, lines: int = 60) -> str:
    rng = np.random.default_rng(seed)
    words = ["to", "be", "or", "not", "née", "that", "is", "question", "whether", "'tis", "nobler"]
    return "\n".join(" ".join(rng.choice(words, rng.integers(1, 14))) for _ in range(lines)) + "\n"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "b.txt").write_text(prose(1))
    (tmp_path / "in" / "a.txt").write_text(prose(2))
    (tmp_path / "in" / "deep" / "c.txt").write_text(prose(3))
    (tmp_path / "in" / ".hidden.txt").write_text("not read")
    return tmp_path / "in"


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """A tokenizer of words; ids from 200 on, and 999 for one of them."""
    words = ["to", "be", "or", "not", "née", "that", "is", "question", "whether", "'", "tis", "nobler", "[UNK]"]
    vocabulary = {word: number + 200 for number, word in enumerate(words)} | {"rare": 999}
    facts = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (tmp_path / "words.json").write_text(json.dumps(facts))
    return str(tmp_path / "words.json")


def stream(source: Path, tokenizer: str | None = None) -> list[int]:
    """The windows put together again."""
    result = [fields["tokens"] for fields in arrays(source, "gpt_neox", "files", tokenizer).values()]
    assert all(window.dtype == np.uint16 and len(window) == LENGTH + 1 for window in result)
    assert all(before[-1] == after[0] for before, after in pairwise(result))
    return [int(value) for window in result for value in window[:-1]] + [int(result[-1][-1])]


class TestTokens:
    @pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
    def test_bytes(self, texts: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
        monkeypatch.setattr("benchsuite.storage.sources.texts.PIECE_BYTES", piece_bytes)
        whole = b"".join(path.read_bytes() + b"\0" for path in [texts / "a.txt", texts / "b.txt", texts / "deep/c.txt"])
        result = stream(texts)
        assert bytes(result) == whole[: len(result)]
        assert 0 <= len(whole) - len(result) < LENGTH

    def test_dropped_tokens_are_counted(self, texts: Path) -> None:
        manifest = converted(texts, "gpt_neox", "tokens").manifest
        total = sum(path.stat().st_size + 1 for path in texts.rglob("[abc].txt"))
        assert manifest.created["dropped_tokens"] == total - 1 - manifest.num_samples * LENGTH
        assert manifest.created["tokenizer"] == "bytes"

    @pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
    def test_a_tokenizer(self, texts: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
        monkeypatch.setattr("benchsuite.storage.sources.texts.PIECE_BYTES", piece_bytes)
        vocabulary = json.loads(Path(tokenizer).read_text())["model"]["vocab"]
        expected: list[int] = []
        for path in [texts / "a.txt", texts / "b.txt", texts / "deep/c.txt"]:
            expected += [vocabulary[word] for word in path.read_text().replace("'tis", "' tis").split()] + [0]
        result = stream(texts, tokenizer)
        assert result == expected[: len(result)]
        assert 0 <= len(expected) - len(result) < LENGTH

    @pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
    def test_each_file_is_a_document(self, texts: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
        """Also where bytes 0 stand in it, or a tokenizer has another token 0."""
        monkeypatch.setattr("benchsuite.storage.sources.texts.PIECE_BYTES", piece_bytes)
        (texts / "a.txt").write_bytes(b"to be\0 or\nnot\0\n" * 20)
        lengths = [path.stat().st_size + 1 for path in (texts / "a.txt", texts / "b.txt", texts / "deep" / "c.txt")]
        dataset = converted(texts, "gpt_neox", "tokens")
        index = read_index(dataset.folder / "tokens.idx")
        kept = dataset.manifest.num_samples * LENGTH + 1
        assert index.lengths.tolist() == [*lengths[:2], kept - sum(lengths[:2])]
        assert index.documents.tolist() == [0, 1, 2, 3]

    def test_one_file(self, texts: Path) -> None:
        content = (texts / "a.txt").read_bytes()
        result = stream(texts / "a.txt")
        assert bytes(result) == content[: len(result)]

    @pytest.mark.parametrize("suffix", ["txt.gz", "txt.xz", "TXT.ZST", "txt.bz2"])
    def test_compressed_ones_are_refused_and_never_left_out(self, texts: Path, suffix: str) -> None:
        (texts / "deep" / f"d.{suffix}").write_bytes(b"\x1f\x8b")
        expected = f"{texts / 'deep' / f'd.{suffix}'}: compressed; unpack it first, to .txt"
        assert refusal(texts, "gpt_neox") == expected
        assert refusal(texts / "deep" / f"d.{suffix}", "gpt_neox") == expected

    def test_too_short(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("few words")
        assert refusal(tmp_path / "a.txt", "gpt_neox").startswith(
            f"{tmp_path / 'a.txt'}: too little data: 10 tokens, a window needs 129"
        )


class TestTokenizersThatDoNotFit:
    def test_a_vocabulary_too_large(self, texts: Path, tokenizer: str) -> None:
        (texts / "a.txt").write_text(prose(2) + "rare words\n")
        message = refusal(texts, "gpt_neox", tokenizer)
        assert message.startswith(f"{texts / 'a.txt'}: ")
        assert message.endswith("tokens holds 999, needed: 0..511 (vocab_size 512)")

    def test_text_that_is_not_utf8(self, texts: Path, tokenizer: str) -> None:
        (texts / "b.txt").write_bytes(b"caf\xe9\n" * 100)
        message = refusal(texts, "gpt_neox", tokenizer)
        assert message.startswith(f"{texts / 'b.txt'}: ")
        assert "not UTF-8" in message

    @pytest.mark.parametrize("content", [None, "", "{}", "words"])
    def test_no_tokenizer(self, texts: Path, tmp_path: Path, content: str | None) -> None:
        path = tmp_path / "broken.json"
        if content is not None:
            path.write_text(content)
        assert refusal(texts, "gpt_neox", str(path)).startswith(f"{path}: ")

    def test_not_installed(self, texts: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        expected = "tokenizers is not installed: pip install 'benchsuite[text]'"
        assert refusal(texts, "gpt_neox", tokenizer) == expected
