"""The options of `benchsuite sweep`: one field each, which `submit` and `nightly run` pass on without reading them."""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from benchsuite.cli.common import DEFAULT_STORE, LauncherName, Overrides, Profile, Session, Store
from benchsuite.contract.errors import refuse
from benchsuite.results.store.outcomes import FAILED
from benchsuite.runner.claims import LEASE_S


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is run; what it measures stands in its file."""

    session: Session = "default"
    store: Store = DEFAULT_STORE
    overrides: Overrides = None
    launcher: LauncherName = "auto"
    retry: Annotated[str, typer.Option("--retry", help="Run again what ended so: failed,oom,timeout.")] = ""
    profile: Profile = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Start nothing that would not end by then: 06:30, +2h."),
    ] = None
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds without a sign after which another sweep's trial is free.")
    ] = LEASE_S
    order_seed: Annotated[
        int | None, typer.Option("--order-seed", metavar="N", help="Shuffle each round of repeats by this seed.")
    ] = None

    def words(self, without: Collection[str] = ()) -> list[str]:
        """What differs from the defaults, as it is typed."""
        return [word for name in _names(without) for word in self._typed(name)]

    def _typed(self, name: str) -> Iterator[str]:
        value = getattr(self, name)
        if value == getattr(type(self), name):
            return
        for one in value if isinstance(value, list) else [value]:
            yield from (_option(name), str(one))


def takes_sweep_options(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb whose last parameter is `options: SweepOptions` an option for each of its fields, but some."""
    hints, names = get_type_hints(SweepOptions, include_extras=True), _names(without)

    def with_options(verb: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(verb)
        own = [each for each in signature.parameters.values() if each.name != "options"]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=getattr(SweepOptions, name), annotation=hints[name]
            )
            for name in names
        ]

        @wraps(verb)
        def called(**given: Any) -> None:
            options = SweepOptions(**{name: given.pop(name) for name in names})
            verb(**given, options=options)

        called.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
        return called

    return with_options


def retried(retry: str) -> frozenset[str]:
    """What `--retry` names.

    Raises:
        UserError: no trial that ends so can be run again.
    """
    statuses = [word.strip() for word in retry.split(",") if word.strip()]
    for word in statuses:
        if word not in FAILED:
            raise refuse("--retry", word, sorted(FAILED))
    return frozenset(statuses)


def _names(without: Collection[str]) -> list[str]:
    return [field.name for field in fields(SweepOptions) if field.name not in without]


def _option(name: str) -> str:
    """The first of an option's words, such as `-o`."""
    info = next(each for each in get_args(get_type_hints(SweepOptions, include_extras=True)[name])[1:])
    return next(str(word) for word in (info.default, *(info.param_decls or ())) if str(word).startswith("-"))
