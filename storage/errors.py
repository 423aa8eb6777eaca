"""What is wrong with a dataset, or with what was asked of it."""


class DatasetError(ValueError):
    """Something about a dataset that its user can mend: said in one line."""
