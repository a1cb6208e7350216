"""The flags of generation, shared by every command that generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tandem.client.cli import options as o
from tandem.client.cli.shared_flags import with_shared_flags
from tandem.client.cli.terminal import CommandError
from tandem.client.params import GenerateOptions
from tandem.client.sampling import LIMITS
from tandem.client.sampling_params import HELP
from tandem.limits.fields import Kind, Limit

GenerationFlags = Callable[[], GenerateOptions]  # raises CommandError, within the command's own handling of errors

_SAMPLING, _PENALTIES, _CONSTRAINTS = "Sampling", "Penalties", "Constraints"
_TYPES = {Kind.NUMBER: float, Kind.INTEGER: int, Kind.FLAG: bool}
# Where a flag is not the parameter's name with dashes.
_FLAGS = {
    "temperature": ("--temperature", "-t"),
    "temperature_last": ("--temperature-last/--temperature-first",),
    "dry_sequence_breakers": ("--dry-breaker-ids",),
    "allowed_ids": ("--allow-id",),
    "banned_ids": ("--ban-id",),
    "banned_sequences": ("--ban-sequence",),
}
# Lists are typed as text, and repeated.
_LIST_HELP = {
    "dry_sequence_breakers": "Ids, such as 13 or 5,6, that end a repetition; repeatable.",
    "logit_bias": "ID=NUMBER, added to a token's logit; repeatable.",
    "allowed_ids": "Nothing but these ids, such as 5 or 5,6; repeatable.",
    "banned_ids": "Never these ids; repeatable.",
    "banned_sequences": "Never these ids in a row, such as 5,6; repeatable.",
}


def _flag(name: str, limit: Limit) -> Any:
    """Returns the flag of a sampling parameter."""
    if any(word in name for word in ("repetition", "presence", "frequency", "dry")):
        panel = _PENALTIES
    else:
        panel = _SAMPLING if limit.scalar else _CONSTRAINTS
    words = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    if not limit.scalar:
        return Annotated[list[str] | None, typer.Option(*words, help=_LIST_HELP[name], rich_help_panel=panel)]
    about = HELP[name][:1].upper() + HELP[name][1:]
    bounds = f" ({limit.range})" if limit.high < 2**32 - 1 and limit.range else ""
    return Annotated[_TYPES[limit.kind] | None, typer.Option(*words, help=f"{about}{bounds}.", rich_help_panel=panel)]


# Flag names are those of SamplingParams; so are the parameters that they fill.
SAMPLING_FLAGS: dict[str, Any] = {
    "preset": Annotated[
        str | None,
        typer.Option(
            "--preset",
            help="Preset: creative, balanced, focused or deterministic; flags override it.",
            rich_help_panel=_SAMPLING,
        ),
    ],
    "strategy": Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help="Strategy: greedy, top_k, top_p, temperature or combined; flags override it.",
            rich_help_panel=_SAMPLING,
        ),
    ],
    "dry_breakers": Annotated[
        list[str] | None,
        typer.Option("--dry-breaker", help="Text that ends a repetition; repeatable.", rich_help_panel=_PENALTIES),
    ],
} | {name: _flag(name, limit) for name, limit in LIMITS.items()}
STOPPING_FLAGS: dict[str, tuple[Any, Any]] = {
    "max_tokens": (o.MaxTokens, None),
    "min_tokens": (o.MinTokens, None),
    "stop": (o.Stop, None),
    "stop_id": (o.StopIds, None),
    "stop_sequence": (o.StopSequences, None),
    "ignore_eos": (o.IgnoreEos, False),
    "include_stop": (o.IncludeStop, False),
    "timeout": (o.Timeout, 600.0),
}
GUIDED_FLAGS: dict[str, Any] = {
    "json_schema": o.JsonSchemaFile,
    "regex": o.RegexPattern,
    "choice": o.Choice,
    "grammar": o.GrammarFile,
}
SPECULATION_FLAGS: dict[str, Any] = {"draft_tokens": o.DraftTokens, "prompt_lookup": o.PromptLookup}


def with_generation_flags(*, max_tokens: int | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that takes `flags: GenerationFlags` among its parameters; `max_tokens` is a default."""
    absent: dict[str, Any] = {**SAMPLING_FLAGS, **GUIDED_FLAGS, **SPECULATION_FLAGS}
    added: dict[str, tuple[Any, Any]] = {name: (kind, None) for name, kind in absent.items()}
    added |= {**STOPPING_FLAGS, "max_tokens": (o.MaxTokens, max_tokens)}
    return with_shared_flags("flags", added, _options)


def _options(given: dict[str, Any]) -> GenerateOptions:
    """Returns the options that the flags set. Raises CommandError."""
    values: dict[str, Any] = {name: given[name] for name in SAMPLING_FLAGS}
    for name in ("allowed_ids", "banned_ids"):
        values[name] = [id_ for text in given[name] or [] for id_ in _ids(text)] or None
    for name in ("banned_sequences", "dry_sequence_breakers"):
        values[name] = [_ids(text) for text in given[name] or []] or None
    values["dry_breakers"] = [o.unescaped(one) for one in given["dry_breakers"] or []]
    values["logit_bias"] = dict(_bias(text) for text in given["logit_bias"] or []) or None
    options: GenerateOptions = {
        **values,  # type: ignore[typeddict-item]  # checked with everything else
        "max_tokens": given["max_tokens"],
        "min_tokens": given["min_tokens"],
        "stop": [o.unescaped(one) for one in given["stop"] or []],
        "stop_token_ids": given["stop_id"] or [],
        "stop_sequences": [_ids(text) for text in given["stop_sequence"] or []],
        "ignore_eos": given["ignore_eos"],
        "include_stop": given["include_stop"],
        "timeout": given["timeout"] or None,
        "guided": o.guide(*(given[name] for name in GUIDED_FLAGS)),
        "draft_tokens": given["draft_tokens"],
        "prompt_lookup": given["prompt_lookup"],
    }
    return options


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"{text!r} is not a list of token ids such as 5 or 5,6", exit_code=2) from None


def _bias(text: str) -> tuple[int, float]:
    id_, _, bias = text.partition("=")
    try:
        return int(id_), float(bias)
    except ValueError:
        raise CommandError(f"--logit-bias {text!r} is not ID=NUMBER such as 5=-2.5", exit_code=2) from None
