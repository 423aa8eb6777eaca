"""The I/O profile of a trial in words: operations, sizes of reads, order, use of files, and what saw the bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.render.tables import ABSENT
from benchsuite.results.render.words import binary, counted, duration, size

BAR = 24
"""Characters of the longest bar of a chart."""
NOTABLE = 0.02
"""Share from which on the report says what calls that only the kernel counted may be."""
TIMES = ("p50_s", "p95_s", "p99_s", "max_s", "seconds")
LIBRARIES = "h5py's chunks, DALI's readers, imports"


def is_known(profile: Mapping[str, Any] | None) -> bool:
    """Whether a profile is one that can be told in words; other programs and versions may keep others."""
    try:
        return profile is not None and bool(lines(profile))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False


def lines(profile: Mapping[str, Any]) -> list[str]:
    """The profile as lines of text."""
    return [
        _heading(profile),
        *(_operations(profile) if profile["operations"] or not profile.get("requests") else []),
        *_requests(profile.get("requests")),
        *_sizes(profile["read_sizes"]),
        *([] if profile.get("requests") and not sum(profile["order"].values()) else [_order(profile)]),
        *_files(profile["files"]),
        *_bytes(profile),
    ]


def _heading(profile: Mapping[str, Any]) -> str:
    who = counted(profile["workers"], "worker") if profile["workers"] else counted(profile["threads"], "thread")
    text = f"I/O of {who} of {counted(profile['ranks'], 'rank')}, {profile['seconds']:.1f} s"
    cost = profile.get("cost_s_per_call")
    how = {"wrappers": "by wrapped calls", "strace": "by strace", "darshan": "by Darshan"}[profile["by"]]
    part = profile["observed_fraction"]
    return "".join(
        [
            f"{text}, {how}",
            f", which cost {cost * 1e6:.0f} us a call" if cost else "",
            f", in 1 of {1 / part:.0f} batches: counts are of these" if 0 < part < 0.95 else "",
        ]
    )


def _operations(profile: Mapping[str, Any]) -> list[str]:
    rows = [("operation", "count", "bytes", "mean", "p50", "p95", "p99", "longest", "time", "share")]
    for name, found in profile["operations"].items():
        moved, seconds = name in ("read", "write") and found["count"], found["seconds"]
        rows.append(
            (
                name + (f" ({found['errors']} failed)" if found["errors"] else ""),
                f"{found['count']:,}",
                size(found["bytes"]) if moved else ABSENT,
                size(found["bytes"] / found["count"]) if moved else ABSENT,
                *(ABSENT if found[key] is None else duration(found[key]) for key in TIMES),
                f"{seconds / profile['io_s']:.0%}" if profile["io_s"] and seconds is not None else ABSENT,
            )
        )
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _requests(requests: Mapping[str, Any] | None) -> list[str]:
    """Requests to a bucket, since the trial's beginning."""
    if not requests:
        return []
    rows: list[tuple[str, ...]] = [
        ("request", "count", "bytes", "retries", "p50", "p95", "p99", "first byte p50", "p99")
    ]
    for kind, found in requests.items():
        times = [found[name] for name in (*TIMES[:3], "first_byte_p50_s", "first_byte_p99_s")]
        rows.append(
            (
                kind.replace("get_range", "range") + (f" ({found['failed']} failed)" if found["failed"] else ""),
                f"{found['count']:,}",
                size(found["bytes"]) if found["bytes"] else ABSENT,
                f"{found['retries']:,}",
                *(ABSENT if each is None else duration(each) for each in times),
            )
        )
    return [*_aligned(rows), "bucket: its client counts all of the trial's requests; the server's cache cannot be seen"]


def _sizes(histogram: Mapping[str, int]) -> list[str]:
    """A bar per power of two."""
    most = max(histogram.values(), default=0)
    named = {below(int(bound)) if bound.isdigit() else bound: count for bound, count in histogram.items()}
    width = max(map(len, named), default=0)
    return [
        *(["reads by size"] if named else []),
        *(
            f" {name:>{width}}  {'█' * max(1, round(BAR * count / most)):<{BAR}}  {count:,}"
            for name, count in named.items()
        ),
    ]


def below(bound: int) -> str:
    """The sizes from half a power of two to just below it; that of nothing."""
    if bound == 1:
        return "0 B"
    return f"{binary(bound // 2)} to {binary(bound)}"


def _order(profile: Mapping[str, Any]) -> str:
    order = profile["order"]
    reads = sum(order.values())
    if not reads:
        return "order: no read calls were seen"
    share = {name: f"{count / reads:.0%}" for name, count in order.items()}
    text = f"order: {share['first']} of reads are the first of their descriptor, {share['onward']} go on where the last"
    text += f" one ended, {share['elsewhere']} begin elsewhere"
    sequential, metadata = profile["sequential_fraction"], profile["metadata_fraction"]
    if sequential is not None:
        text += f" (sequential share {sequential:.2f})"
    return text + (f" · metadata {metadata:.0%} of the time" if metadata is not None else "")


def _files(files: Mapping[str, Any]) -> list[str]:
    if not files["distinct"]:
        return []
    part = "" if files["followed"] == files["listed"] else f", of every {files['listed'] // files['followed']}th"
    text = (
        f"files: {files['distinct']:,} of {files['listed']:,} used{part} · {files['opens_per_file']:.1f} opens a file"
    )
    text += f" (most {files['most_opens']}), {files['reads_per_file']:.1f} reads a file"
    share = files["bytes_per_size"]
    return [text + (f" · bytes read are {share:.2f} x their size" if share is not None else "")]


def _bytes(profile: Mapping[str, Any]) -> list[str]:
    """The bytes that were handed on, and by what they were read."""
    found, counted = profile["bytes"], profile["counters"]
    parts = [f"{size(found['seen'])} by the calls above"]
    if found["only_counted"] is not None:
        what = f" ({LIBRARIES})" if found["only_counted"] > NOTABLE * found["seen"] else ""
        parts.append(f"{size(found['only_counted'])} by calls that only the kernel counted{what}")
    if found["mapped"]:
        parts.append(f"{size(found['mapped'])} as pages of mapped files")
    handed = f"{size(found['delivered'])} of samples handed on; " if found["delivered"] is not None else ""
    text = [f"bytes: {handed}read: {', '.join(parts)}"]
    if counted:
        text.append(
            f"kernel, {profile['counters_of']}: {counted['read_calls']:,} read calls, {size(counted['read_bytes'])}; "
            f"{size(counted['storage_bytes'])} from storage; page faults {counted['minor_faults']:,} minor, "
            f"{counted['major_faults']:,} major"
        )
    return text
