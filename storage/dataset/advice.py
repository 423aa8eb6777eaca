"""What to do where readers are too many for a dataset (no heavy imports)."""


def too_few(count: int, units: str, lanes: int, remedy: str) -> str:
    """Why so many samples or shards (`units`) are not enough for their readers, and what helps, at last `remedy`.

    A rank without workers, and each with the loader dali, is one reader: fewer workers help only the others.
    """
    readers = f"{lanes} readers (ranks x workers; without workers or with dali one a rank)"
    return f"{count} {units} < {readers}: fewer ranks, fewer workers where a rank has several readers, or {remedy}"
