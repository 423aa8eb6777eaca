"""Counters of mounts and block devices, from texts of the kernel and from a real read; and what file systems can do."""

import os
from pathlib import Path

import pytest

from benchsuite.storage.observe.counters import MountIO, disk_io, endpoint_io, interface_io, lustre_io, mount_io, nfs_io
from benchsuite.storage.observe.file_systems import UNKNOWN, device_of, file_system_of, in_words, server_cache_of
from benchsuite.storage.observe.page_cache import evict
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
        assert server_cache_of(name, "8:0") == "unknown", name
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


def made_devices(root: Path, where: str, texts: dict[str, str] | None = None, over: tuple[str, ...] = ()) -> Path:
    """A folder like /sys/dev/block with one device, 8:0, that lies at `where` and is made of others."""
    device = root / "devices" / where
    for name, text in (texts or {}).items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    (device / "slaves").mkdir(parents=True)
    for number, path in enumerate(over):
        (root / "devices" / path).mkdir(parents=True)
        (device / "slaves" / f"part{number}").symlink_to(root / "devices" / path)
    (root / "block").mkdir()
    (root / "block" / "8:0").symlink_to(device)
    return root / "block"


NVME, VIRTIO = "pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1", "pci0000:00/0000:00:02.0/virtio1/block/vda"


@pytest.mark.parametrize(
    ("where", "texts", "over", "cached"),
    [
        (NVME, {"device/transport": "pcie", "device/model": "Samsung SSD 990 PRO"}, (), "no"),
        (NVME, {"device/transport": "tcp"}, (), "unknown"),
        (NVME, {"device/transport": "pcie", "device/model": "Amazon Elastic Block Store"}, (), "unknown"),
        (NVME, {"device/transport": "pcie", "device/model": "Amazon EC2 NVMe Instance Storage"}, (), "no"),
        ("pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", {}, (), "no"),
        ("platform/host3/session1/target3:0:0/3:0:0:1/block/sdb", {}, (), "unknown"),
        (VIRTIO, {}, (), "unknown"),
        (f"{VIRTIO}/vda1", {"partition": "1"}, (), "unknown"),
        ("vbd-51712/block/xvda", {}, (), "unknown"),
        ("virtual/block/nbd0", {}, (), "unknown"),
        ("rbd/0/block/rbd0", {}, (), "unknown"),
        ("virtual/block/dm-0", {}, (NVME,), "no"),
        ("virtual/block/md0", {}, (NVME, VIRTIO), "unknown"),
    ],
)
def test_who_may_cache_behind_a_block_device(
    tmp_path: Path, where: str, texts: dict[str, str], over: tuple[str, ...], cached: str
) -> None:
    assert server_cache_of("ext4", "8:0", made_devices(tmp_path, where, texts, over)) == cached


def test_a_partition_is_judged_by_its_disk(tmp_path: Path) -> None:
    devices = made_devices(tmp_path, f"{NVME}/nvme0n1p1", {"partition": "1"})
    (tmp_path / "devices" / NVME / "device").mkdir()
    (tmp_path / "devices" / NVME / "device" / "transport").write_text("rdma\n")
    assert server_cache_of("xfs", "8:0", devices) == "unknown"


@pytest.mark.parametrize(
    ("kind", "device", "cached"),
    [
        ("ext4", None, "unknown"),
        ("ext4", "9:9", "unknown"),
        ("overlay", "8:0", "unknown"),
        ("nfs4", "8:0", "unknown"),
        ("tmpfs", None, "no"),
        ("zfs", None, "unknown"),
    ],
)
def test_what_lies_below_is_not_guessed(tmp_path: Path, kind: str, device: str | None, cached: str) -> None:
    assert server_cache_of(kind, device, made_devices(tmp_path, NVME)) == cached


def test_the_device_of_a_path(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    if os.major(number):
        assert device_of(tmp_path, None) == f"{os.major(number)}:{os.minor(number)}"
    assert device_of(Path("/proc"), "proc") is None


def test_a_virtual_disk_in_words() -> None:
    assert in_words("ext4", "unknown") == "cold cache: client yes, server cannot be seen"


NETDEV = """Inter-|   Receive                             |  Transmit
 face |bytes    packets errs drop fifo frame |bytes    packets errs drop
    lo: 1234567     100    0    0    0     0   1234567     100    0    0
  eth0:98765432    5000    0    0    0     0     54321     400    0    0
"""


def test_bytes_that_an_interface_received():
    assert interface_io(NETDEV, "eth0") == MountIO("net eth0", 98765432, True)
    assert interface_io(NETDEV, "eth1") is None


def test_the_interface_that_leads_to_an_endpoint():
    found = endpoint_io("http://127.0.0.1:9")
    assert found is not None and found.source == "net lo" and found.read_bytes > 0
    assert endpoint_io(None) is None and endpoint_io("http://name.invalid") is None
