"""Samples that are left out of a conversion since they cannot be read, and how many may be."""

from dataclasses import dataclass, field
from fractions import Fraction

from benchsuite.storage.dataset.problems import Problems
from benchsuite.storage.errors import DatasetError


@dataclass(frozen=True)
class MaxErrors:
    """How many samples may be left out: a share of all, or a number."""

    text: str
    number: int = 0
    share: Fraction = Fraction(0)

    def of(self, total: int) -> int:
        """How many of so many samples."""
        return self.number or int(self.share * total)


def max_errors(text: str) -> MaxErrors:
    """Read `0.1%` or `20`.

    Raises:
        ValueError: it is neither.
    """
    given = text.strip()
    try:
        share = Fraction(given.removesuffix("%")) / 100 if given.endswith("%") else None
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if share is not None and 0 <= share <= 1:
        return MaxErrors(given, share=share)
    if given.isascii() and given.isdecimal():
        return MaxErrors(given, number=int(given))
    raise ValueError(f"{text!r}: allowed: a share of the samples such as 0.1%, or a number such as 20")


@dataclass
class Skips:
    """What was left out so far, a line each that says why: a sample, or all that followed in a file."""

    most: MaxErrors
    total: int | None = None
    """How many samples there are, those left out among them; None where that is not known yet."""
    reasons: list[str] = field(default_factory=list)

    def add(self, error: DatasetError) -> None:
        """Note one more.

        Raises:
            DatasetError: these are more than may be.
        """
        self.reasons.append(str(error))
        if self.total is not None:
            self.check(self.total)

    def finish(self, seen: int) -> None:
        """Check after the last sample, of which so many were seen; see `check`."""
        self.check(seen if self.total is None else self.total)

    def check(self, total: int) -> None:
        """Refuse to leave out more of so many samples than may be.

        Raises:
            DatasetError: how many may be, and the first reasons.
        """
        if len(self.reasons) > (most := self.most.of(total)):
            limit = f"leaves out at most {most} of {total} samples, and more cannot be read"
            self.refuse(DatasetError(f"--max-errors {self.most.text} {limit}"))

    def refuse(self, error: DatasetError) -> None:
        """Raise an error, and with it the first reasons why samples were left out before.

        Raises:
            DatasetError: always.
        """
        problems = Problems()
        for each in (error, *map(DatasetError, self.reasons)):
            problems.add(each)
        problems.tell()
