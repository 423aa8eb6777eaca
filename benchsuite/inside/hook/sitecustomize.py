"""What Python imports by itself where `benchsuite run` has put this folder on PYTHONPATH.

Any Python 3 can read it. It costs next to nothing where nothing is trained, and changes nothing of the job: SECURITY.md
has its contract.
"""

import os
import sys

TYPE_CHECKING = False  # of `typing`, which takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
VARIABLE = "BENCHSUITE_RUN"
MADE_BY_WHO_TRAINS = {
    "torch.utils.data.dataloader": ("DataLoader",),
    "torch.optim.optimizer": ("Optimizer",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("StatefulDataLoader",),
    "nvidia.dali.plugin.pytorch": ("DALIGenericIterator", "DALIRaggedIterator"),
}
"""Classes by their modules: who makes the first object of one may train."""
WORKERS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")
PRIVATE = "_benchsuite_inside"
"""The name under which what measures is loaded: nobody else's, so that it hides nothing of the job's."""


def is_wanted() -> bool:
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        return False
    return sys.implementation.name == "cpython" and sys.version_info >= (3, 10)


class Waiting:
    """A finder of modules that finds none of its own: it sees those of torch being imported."""

    def __init__(self) -> None:
        self.names = {*WORKERS, *MADE_BY_WHO_TRAINS}

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self.names:
            return None
        self.names.discard(name)
        try:
            from importlib.machinery import PathFinder

            spec: Any = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = Afterwards(spec.loader)
            return spec
        except Exception as error:
            give_up(error)
            return None


class Afterwards:
    """A module's loader, and what is done when it has loaded it."""

    def __init__(self, loader: "Any") -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.loader, name)

    def create_module(self, spec: "Any") -> "Any":
        return self.loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            if module.__name__ in WORKERS:
                look_in_workers(module)
            for name in MADE_BY_WHO_TRAINS.get(module.__name__, ()):
                arm_with_the_first(getattr(module, name))
        except Exception as error:
            give_up(error)


def arm_with_the_first(kind: "Any") -> None:
    """Begin to measure when the first object of a class is made, and leave the class as it was."""
    original = kind.__init__

    def __init__(self: "Any", *arguments: "Any", **options: "Any") -> None:
        kind.__init__ = original
        try:
            load().arm()
        except Exception as error:
            give_up(error)
        original(self, *arguments, **options)

    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    kind.__init__ = __init__


def look_in_workers(module: "Any") -> None:
    """Look inside the worker processes of DataLoaders, spawned or forked."""
    original = module._worker_loop

    def _worker_loop(*arguments: "Any", **options: "Any") -> "Any":
        try:
            arguments = load().enter_worker(original, arguments)
        except Exception as error:
            give_up(error)
        return original(*arguments, **options)

    for name in ("__module__", "__qualname__", "__name__", "__doc__"):  # by which it is pickled
        setattr(_worker_loop, name, getattr(original, name))
    module._worker_loop = _worker_loop


def load() -> "Any":
    """What measures, from beside this folder."""
    if PRIVATE + ".job" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        folder = os.path.dirname(HERE)
        place = os.path.join(folder, "__init__.py")
        spec: "Any" = spec_from_file_location(PRIVATE, place, submodule_search_locations=[folder])  # noqa: UP037
        sys.modules[PRIVATE] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PRIVATE])
        __import__(PRIVATE + ".job")
    return sys.modules[PRIVATE + ".job"]


def give_up(error: Exception) -> None:
    sys.stderr.write(f"benchsuite run: this process is not measured: {type(error).__name__}: {error}\n")


def import_the_one_behind() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    mine = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", mine)


if is_wanted():
    sys.meta_path.insert(0, Waiting())
import_the_one_behind()
