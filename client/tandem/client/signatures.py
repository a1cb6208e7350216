"""Shows every keyword of `**options: Unpack[...]` in `help(Client.generate)`."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, get_args, get_type_hints

Class = TypeVar("Class", bound=type[Any])


def spell_out_keywords(cls: Class) -> Class:
    """Gives each public method of `cls` that takes `**options: Unpack[SomeTypedDict]` a signature with its keywords."""
    for name, method in vars(cls).items():
        if not name.startswith("_") and inspect.isfunction(method):
            signature = inspect.signature(method)
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
                method.__signature__ = _spelled_out(method, signature)  # type: ignore[attr-defined]
    return cls


def _spelled_out(method: Any, signature: inspect.Signature) -> inspect.Signature:
    *named, options = signature.parameters.values()
    (keywords,) = get_args(get_type_hints(method)[options.name])
    named += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=reference.__forward_arg__)
        for name, reference in keywords.__annotations__.items()
    ]
    return signature.replace(parameters=named)
