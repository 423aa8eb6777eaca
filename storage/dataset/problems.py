"""Several things wrong with a dataset, told together."""

from benchsuite.storage.errors import DatasetError

MAX_TOLD = 20
"""Problems that are kept in words; the rest are counted."""


class Damage(DatasetError):
    """Several things are wrong with a dataset: its text is the first of them.

    `told` are the first MAX_TOLD, a line each, `count` is how many there are.
    """

    def __init__(self, told: tuple[str, ...], count: int) -> None:
        super().__init__(told, count)
        self.told, self.count = told, count

    def __str__(self) -> str:
        return self.told[0]


class Problems:
    """What has been found wrong so far."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, error: DatasetError) -> None:
        """Note one more, or all that it tells."""
        told, count = (error.told, error.count) if isinstance(error, Damage) else ((str(error),), 1)
        self.told += told[: MAX_TOLD - len(self.told)]
        self.count += count

    def tell(self, may_skip: bool = False) -> None:
        """Raise what was found; `may_skip` is said of it.

        Raises:
            DatasetError: the one thing that was found wrong; `Damage` where there are several.
        """
        if not self.told:
            return
        error = Damage(tuple(self.told), self.count) if self.count > 1 else DatasetError(self.told[0])
        error.may_skip = may_skip
        raise error
