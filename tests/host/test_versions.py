"""Versions of clients and firmware from made-up kernels, and facts that a site's commands write."""

import json
import sys
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.host import environment as versions
from benchsuite.host.environment import (
    devices,
    environment,
    facts_of_host,
    facts_of_site,
    file_system,
    infiniband,
    lustre_client,
    mount_options,
)
from benchsuite.host.site import config_files, site_facts
from benchsuite.results.compare.environments import differences
from tests.helpers.configured import Files, files

__all__ = ["files"]

Part = namedtuple("Part", "device mountpoint fstype opts")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("lustre: 2.10.8\nkernel: patchless_client\nbuild: 2.10.8\n", "2.10.8"),
        ("kernel: patchless_client\nlustre: 2.12.9\n", "2.12.9"),
        ("2.15.4\n", "2.15.4"),
        ("\n", None),
    ],
)
def test_the_version_of_the_lustre_client(tmp_path: Path, text: str, version: str | None) -> None:
    write(tmp_path / "sys/fs/lustre/version", text)
    assert lustre_client(tmp_path) == version


def test_firmware_and_board_of_each_adapter(tmp_path: Path) -> None:
    adapters = tmp_path / "sys/class/infiniband"
    write(adapters / "mlx5_1/fw_ver", "20.39.3560\n")
    write(adapters / "mlx5_0/fw_ver", "20.39.1002\n")
    write(adapters / "mlx5_0/board_id", "MT_0000000223\n")
    assert infiniband(tmp_path) == {
        "mlx5_0": {"fw_ver": "20.39.1002", "board_id": "MT_0000000223"},
        "mlx5_1": {"fw_ver": "20.39.3560", "board_id": None},
    }


def test_without_client_and_adapters_nothing_is_told(tmp_path: Path) -> None:
    assert lustre_client(tmp_path) is None and infiniband(tmp_path) == {}


def test_options_of_the_data_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nfs = "rw,relatime,vers=4.2,rsize=1048576,nconnect=8,clientaddr=10.0.0.7,addr=10.0.0.1"
    parts = [Part("/dev/sda", "/", "ext4", "rw,noatime"), Part("server:/data", str(tmp_path), "nfs4", nfs)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    found = file_system(tmp_path / "not" / "yet")
    assert found["mount"] == str(tmp_path)
    assert found["mount_options"] == "rw,relatime,vers=4.2,rsize=1048576,nconnect=8,addr=10.0.0.1"
    assert file_system(Path("/"))["mount_options"] == "rw,noatime"
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [])
    assert file_system(tmp_path)["mount_options"] is None


def test_a_containers_layers_are_no_options() -> None:
    assert mount_options("rw,lowerdir=/l/1:/l/2,upperdir=/u,workdir=/w,xino=off") == "rw,xino=off"


@pytest.mark.parametrize("tells", [True, False])
def test_the_facts_of_a_device(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    def vbios(handle: int) -> str:
        if not tells:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return "96.00.89.00.01"

    answers: Mapping[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetName": lambda handle: "H100",
        "nvmlDeviceGetMemoryInfo": lambda handle: namedtuple("Memory", "total")(80),
        "nvmlSystemGetDriverVersion": lambda: "550.54",
        "nvmlDeviceGetVbiosVersion": vbios,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 8,
        "nvmlDeviceGetPciInfo": lambda handle: namedtuple("Pci", "domain bus device")(0, 0xFE, 0),
        "nvmlDeviceGetNvLinkState": lambda handle, link: int(link < 18) if tells else vbios(handle),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    told = "96.00.89.00.01" if tells else None
    told_of_links = {"pcie": "5 x8", "nvlinks": 18 if tells else None, "numa_node": None}
    assert devices() == [{"name": "H100", "memory_bytes": 80, "driver": "550.54", "vbios": told, **told_of_links}]


def script(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [sys.executable, "-S", str(path)]


def test_the_first_line_of_a_sites_command_is_a_fact(tmp_path: Path, files: Files) -> None:
    words = script(tmp_path / "told.py", "import sys\nprint('', sys.argv[1], '')\nprint('second')")
    files.write("site", facts={"gpfs_client": [*words, "5.2.1 $HOME; echo"], "bios": ["/of/the/site"]})
    files.write("user", facts={"bios": [*words, "1.7"]})
    assert {name: command[-1] for name, command in site_facts().items()} == {
        "gpfs_client": "5.2.1 $HOME; echo",
        "bios": "1.7",
    }
    assert facts_of_site() == {"gpfs_client": "5.2.1 $HOME; echo", "bios": "1.7"}, (
        "no shell; the user's above the site's"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import sys; print('half'); sys.exit(3)", "exit status 3"),
        ("import time; time.sleep(60)", "took longer than 0.3 s"),
        ("print()", "wrote no line"),
    ],
)
def test_a_command_that_fails_is_null_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    monkeypatch.setattr(versions, "COMMAND_TIMEOUT_S", 0.3 if "sleep" in text else 30.0)
    command = script(tmp_path / "fails.py", text)
    assert facts_of_site({"gpfs_client": command}) == {"gpfs_client": None}
    assert capsys.readouterr().err == f"warning: facts: gpfs_client: {sys.executable}: {why}; recorded as null\n"


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert facts_of_site({"bios": ["/nowhere/dmidecode"]}) == {"bios": None}
    assert capsys.readouterr().err == (
        "warning: facts: bios: /nowhere/dmidecode: No such file or directory; recorded as null\n"
    )


def test_a_file_that_cannot_be_read_on_this_host_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCHSUITE_SITE", "/gone.yaml")
    assert facts_of_site() == {}
    assert capsys.readouterr().err == "warning: BENCHSUITE_SITE=/gone.yaml: no such file\n"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"bios": "dmidecode -s bios-version"}, "facts.bios 'dmidecode -s bios-version': input should be a valid list"),
        ({"bios": []}, "facts.bios"),
        ({"bios": [""]}, "facts.bios.0"),
        ({"a.b": ["true"]}, "facts.a.b"),
    ],
)
def test_facts_are_commands_word_by_word(files: Files, facts: dict[str, Any], words: str) -> None:
    path = files.write("site", facts=facts)
    with pytest.raises(UserError) as caught:
        config_files()
    assert str(caught.value).startswith(f"{path}: {words}") and "\n" not in str(caught.value)


def test_a_client_that_changed_overnight_is_a_difference() -> None:
    adapter = {"mlx5_0": {"fw_ver": "20.39.1002", "board_id": "MT"}}
    one = {"lustre_client": "2.15.4", "infiniband": adapter, "site": {"bios": "1.7"}, "data": {"mount_options": "rw"}}
    one["devices"] = [{"name": "H100", "driver": "550", "vbios": "96.1"}]
    newer = {"lustre_client": "2.15.5", "site": {"bios": None}, "data": {"mount_options": "rw,flock"}}
    newer["infiniband"] = {"mlx5_0": {**adapter["mlx5_0"], "fw_ver": "20.40.1000"}}
    newer["devices"] = [{"name": "H100", "driver": "550", "vbios": "96.2"}]
    assert [(found.fact, found.one, found.other, found.identity) for found in differences(one, newer)] == [
        ("data.mount_options", "rw", "rw,flock", False),
        ("devices.vbios", "96.1", "96.2", False),
        ("infiniband.mlx5_0.fw_ver", "20.39.1002", "20.40.1000", False),
        ("lustre_client", "2.15.4", "2.15.5", False),
        ("site.bios", "1.7", None, False),
    ]


def test_facts_of_this_host() -> None:
    """On whatever machine this runs: the form of what is recorded, which may be null, and nothing else."""
    found = environment()
    assert json.loads(json.dumps(found)) == found and facts_of_host().keys() <= found.keys()
    version = found["lustre_client"]
    assert version is None or (version[:1].isdigit() and "\n" not in version)
    for adapter in found["infiniband"].values():
        assert adapter.keys() == {"fw_ver", "board_id"} and 0 not in adapter.values()
    assert found["site"] == {}, "tests have no site's file"
    assert all(device["vbios"] is None or device["vbios"] for device in found["devices"])
    options = file_system(Path("/proc"))
    assert options["file_system"] == "proc" and {"rw", "ro"} & {*options["mount_options"].split(",")}
