"""Packages that come with extras: what to install where one is missing, in one line."""

from benchsuite.contract.errors import UserError
from benchsuite.workloads.engine import is_installed as is_installed

EXTRAS = {
    "formats": ("PIL", "crc32c", "h5py", "lmdb", "nibabel", "pyarrow", "simplejpeg", "tfrecord", "webdataset"),
    "report": ("duckdb", "junitparser", "pandas", "prometheus_client", "scipy"),
    "figures": ("matplotlib",),
    "dali": ("nvidia",),
    "text": ("tokenizers",),
    "asv": ("asv",),
    "fp8": ("torchao",),
    "s3": ("obstore",),
    "s3-stock": ("awscli", "s3torchconnector"),
    "darshan": ("darshan",),
    "deepspeed": ("deepspeed",),
}
"""Packages of each extra, by the names that they are imported by."""
TORCH = "install the build of PyTorch for your devices, as https://pytorch.org/get-started says"


def remedy(module: str) -> str | None:
    """What installs a package; None for one that no extra brings."""
    name = module.partition(".")[0]
    if name == "torch":
        return TORCH
    return next((f"pip install 'benchsuite[{extra}]'" for extra, names in EXTRAS.items() if name in names), None)


def require(what: str, *modules: str) -> None:
    """Refuse what needs packages that are missing, before it begins.

    Raises:
        UserError: with what would install them.
    """
    missing = [module for module in modules if not is_installed(module)]
    remedies = dict.fromkeys(found for module in missing if (found := remedy(module)))
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(f"{what} needs {', '.join(missing)}, which {are} not installed: {'; '.join(remedies)}")
