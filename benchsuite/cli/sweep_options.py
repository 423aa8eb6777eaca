"""The options of `benchsuite sweep`, one field each. `submit` and `nightly run` pass them on without reading them."""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from benchsuite.cli.common import DEFAULT_STORE, LauncherName, Overrides, Session, Store
from benchsuite.contract.errors import refuse
from benchsuite.contract.trial_spec import ProfileName
from benchsuite.results.store.outcomes import FAILED
from benchsuite.runner.claims import LEASE_S

Profile = Annotated[
    ProfileName | None,
    typer.Option("--profile", help="Also record a profile: io or strace of I/O (strace: no AU), torch, nvtx."),
]


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is run; its file says what it measures."""

    session: Session = "default"
    store: Store = DEFAULT_STORE
    overrides: Overrides = None
    launcher: LauncherName = "auto"
    retry: Annotated[str, typer.Option("--retry", help="Run trials again that ended so: failed,oom,timeout.")] = ""
    profile: Profile = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Start no trial that would end after TIME: 06:30, +2h."),
    ] = None
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds without a sign after which another sweep loses its trial.")
    ] = LEASE_S
    order_seed: Annotated[
        int | None, typer.Option("--order-seed", metavar="N", help="Shuffle each round of repeats with this seed.")
    ] = None

    def words(self, without: Collection[str] = ()) -> list[str]:
        """Return the options that differ from their defaults, as they are typed."""
        return [word for name in _field_names(without) for word in self._option_words(name)]

    def _option_words(self, name: str) -> Iterator[str]:
        value = getattr(self, name)
        if value == getattr(type(self), name):
            return
        for item in value if isinstance(value, list) else [value]:
            yield from (_option(name), str(item))


def takes_sweep_options(
    without: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a verb an option for each field of SweepOptions, except some, or for some alone.

    The verb's last parameter is `options: SweepOptions`; typer sees the fields in its place.
    """
    hints, names = get_type_hints(SweepOptions, include_extras=True), [*(only or _field_names(without))]

    def with_options(verb: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(verb)
        verb_parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
        field_parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=getattr(SweepOptions, name), annotation=hints[name]
            )
            for name in names
        ]

        @wraps(verb)
        def call(**arguments: Any) -> None:
            options = SweepOptions(**{name: arguments.pop(name) for name in names})
            verb(**arguments, options=options)

        parameters = [*verb_parameters, *field_parameters]
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return with_options


def parse_retry(retry: str) -> frozenset[str]:
    """Return the statuses that `--retry` names.

    Raises:
        UserError: a word is no status of a failed trial.
    """
    statuses = [word.strip() for word in retry.split(",") if word.strip()]
    for word in statuses:
        if word not in FAILED:
            raise refuse("--retry", word, sorted(FAILED))
    return frozenset(statuses)


def _field_names(without: Collection[str]) -> list[str]:
    return [field.name for field in fields(SweepOptions) if field.name not in without]


def _option(name: str) -> str:
    """Return the first word of a field's option, such as `-o`."""
    info = get_args(get_type_hints(SweepOptions, include_extras=True)[name])[1]
    return next(str(word) for word in (info.default, *(info.param_decls or ())) if str(word).startswith("-"))
