"""Counters of mounts and block devices, from texts of the kernel and from a real read; and what file systems can do."""

import os
from pathlib import Path

import pytest

from storage.filesystems import UNKNOWN, file_system_of, in_words
from storage.iostat import MountIO, disk_io, lustre_io, mount_io, nfs_io
from storage.pagecache import evict
from tests.storage.samples import file_system

DISKSTATS = """   7       0 loop0 12 0 24 5 0 0 0 0 0 5 5 0 0 0 0 0 0
 259       0 nvme0n1 190 10 8000 77 5 5 5 5 0 5 5 0 0 0 0 0 0
 259       1 nvme0n1p1 100 0 4000 7 5 5 5 5 0 5 5 0 0 0 0 0 0
"""
MOUNTSTATS = """device sysfs mounted on /sys with fstype sysfs
device nas:/export mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tage:\t3600
\tbytes:\t5000 1 300 2 4096 6 7 8
\tper-op statistics
device nas:/home mounted on /home with fstype nfs4 statvers=1.1
\tbytes:\t9 9 9 9 77 9 9 9
"""
LLITE = """snapshot_time             1699.1 secs.nsecs
read_bytes                118 samples [bytes] 1 4194304 123456789
write_bytes               2 samples [bytes] 1 2 3
"""


@pytest.mark.parametrize(
    ("device", "expected"), [("259:0", MountIO("diskstats nvme0n1", 8000 * 512, True)), ("8:0", None)]
)
def test_a_devices_sectors_are_of_512_bytes(device: str, expected: MountIO | None) -> None:
    assert disk_io(DISKSTATS, device) == expected


@pytest.mark.parametrize(("mount", "expected"), [("/data", 4096), ("/home", 77), ("/da", None), ("/sys", None)])
def test_an_nfs_mounts_bytes_are_those_of_its_server(mount: str, expected: int | None) -> None:
    found = nfs_io(MOUNTSTATS, mount)
    assert (found.read_bytes if found else None) == expected
    assert found is None or (found.source, found.from_storage) == (f"mountstats {mount}", True)


def test_a_lustre_clients_bytes_are_those_asked_for(tmp_path: Path) -> None:
    for name in ("scratch-ffff8881", "home-ffff8882"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stats").write_text(LLITE if name.startswith("scratch") else "snapshot_time 1\n")
    assert lustre_io("/lustre/scratch", [tmp_path / "gone", tmp_path]) == MountIO("llite scratch", 123456789, False)
    assert lustre_io("/lustre/home", [tmp_path]) is None


def test_a_cold_read_shows_in_its_devices_counter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(32 << 20))
    before = mount_io(path)
    if before is None:
        pytest.skip(f"{file_system(tmp_path)} has no counter of its own here")
    evict([path])
    path.read_bytes()
    after = mount_io(path)
    assert after is not None and after.source == before.source
    assert after.read_bytes - before.read_bytes >= 32 << 20


def test_what_cannot_be_seen_is_never_certified() -> None:
    for name in ("gpfs", "fuse.daos", "fuse.sshfs", "zfs", "something", None):
        assert not file_system_of(name).client_visible, name
    for name in ("nfs4", "lustre"):
        assert file_system_of(name).client_visible and file_system_of(name).server_cache == "unknown"
    assert file_system_of("fuse.anything") == UNKNOWN


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ext4", "cold cache: client yes, server none"),
        ("lustre", "cold cache: client yes, server cannot be seen"),
        ("gpfs", "cold cache: client cannot be seen, server cannot be seen"),
        ("tmpfs", "tmpfs is memory: nothing there can be cold"),
    ],
)
def test_in_words(kind: str, words: str) -> None:
    assert in_words(kind) == words
