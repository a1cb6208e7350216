"""Flags that several commands share: a decorator adds them, and the command gets one argument instead of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

Made = TypeVar("Made")


def with_shared_flags(
    argument: str, added: Mapping[str, tuple[Any, Any]], make: Callable[[dict[str, Any]], Made]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command with flags, by name: their annotation for typer and their default.

    Its parameter `argument` becomes a function that returns `make(values)`, so that errors come within the command's
    own handling of them.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        del hints[argument]
        parameters = [
            each.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in inspect.signature(command).parameters.items()
            if name != argument
        ]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in added.items()
        ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in added}
            command(**values, **{argument: functools.partial(make, given)})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate
