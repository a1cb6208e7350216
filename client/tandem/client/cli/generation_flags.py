"""The flags of generation, shared by every command that generates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.client.cli import options as o
from tandem.client.cli.shared_flags import with_shared_flags
from tandem.client.cli.terminal import CommandError
from tandem.client.params import GenerateOptions
from tandem.client.reasoning import Reasoning
from tandem.client.sampling import LIMITS
from tandem.client.sampling_params import HELP
from tandem.limits.fields import Kind, Limit

GenerationFlags = Callable[[], GenerateOptions]  # raises CommandError, within the command's own handling of errors

_SAMPLING, _PENALTIES, _CONSTRAINTS = "Sampling", "Penalties", "Constraints"
_STOPPING, _GUIDED, _SPECULATION = "Stopping", "Guided decoding", "Speculation"
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


def _option(kind: Any, panel: str, about: str, *words: str) -> Any:
    """Returns a flag; without `words` it is called like its parameter."""
    return Annotated[kind, typer.Option(*words, help=about, rich_help_panel=panel)]


# Flag names are those of SamplingParams; so are the parameters that they fill.
SAMPLING_FLAGS: dict[str, Any] = {
    "preset": _option(
        str | None, _SAMPLING, "Preset: creative, balanced, focused or deterministic; flags override it."
    ),
    "strategy": _option(
        str | None, _SAMPLING, "Strategy: greedy, top_k, top_p, temperature or combined; flags override it."
    ),
    "dry_breakers": _option(list[str] | None, _PENALTIES, "Text that ends a repetition; repeatable.", "--dry-breaker"),
} | {name: _flag(name, limit) for name, limit in LIMITS.items()}
STOPPING_FLAGS: dict[str, Any] = {
    "max_tokens": _option(int | None, _STOPPING, "Maximum number of tokens to generate.", "--max-tokens", "-n"),
    "min_tokens": _option(int | None, _STOPPING, "Minimum number of tokens to generate."),
    "stop": _option(list[str] | None, _STOPPING, "Stop string; repeatable. \\n and \\t are unescaped."),
    "stop_id": _option(list[int] | None, _STOPPING, "Stop token id; repeatable."),
    "stop_sequence": _option(list[str] | None, _STOPPING, "Stop sequence of ids, such as 5,6; repeatable."),
    "ignore_eos": _option(bool, _STOPPING, "Ignore the model's end-of-sequence ids.", "--ignore-eos"),
    "include_stop": _option(bool, _STOPPING, "Include the matched stop in the text.", "--include-stop"),
    "timeout": o.Timeout,
}
ADAPTER_FLAGS: dict[str, Any] = {
    "adapter": _option(str, _SAMPLING, "Name of a LoRA adapter that the worker has beside its model."),
}
GUIDED_FLAGS: dict[str, Any] = {
    "json_schema": _option(Path | None, _GUIDED, "File with the JSON schema of the answer."),
    "regex": _option(str | None, _GUIDED, "Regular expression that the whole answer matches."),
    "choice": _option(list[str] | None, _GUIDED, "A possible answer; repeatable."),
    "grammar": _option(Path | None, _GUIDED, "File with a Lark grammar of the answer."),
    "structural_tag": _option(Path | None, _GUIDED, "File with structures for parts of the answer, as JSON."),
}
REASONING_FLAGS: dict[str, Any] = {
    "reasoning_end": _option(
        str | None, _GUIDED, "Ids, such as 5 or 5,6, that end the reasoning; what is guided begins behind them."
    ),
    "reasoning_begin": _option(
        str | None, _GUIDED, "Ids behind which the reasoning begins; none: the output begins within it."
    ),
    "reasoning_tokens": _option(int | None, _GUIDED, "Tokens of reasoning after which --reasoning-end is forced."),
}
SPECULATION_FLAGS: dict[str, Any] = {
    "draft_tokens": _option(int | None, _SPECULATION, "Maximum number of draft tokens per step; 0: no speculation."),
    "prompt_lookup": _option(int | None, _SPECULATION, "Length of the n-gram for prompt lookup."),
}
_DEFAULTS: dict[str, Any] = {"ignore_eos": False, "include_stop": False, "timeout": 600.0}


def with_generation_flags(*, max_tokens: int | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that takes `flags: GenerationFlags` among its parameters; `max_tokens` is a default."""
    flags = {**SAMPLING_FLAGS, **ADAPTER_FLAGS, **GUIDED_FLAGS, **REASONING_FLAGS, **SPECULATION_FLAGS}
    flags |= STOPPING_FLAGS
    defaults = {**_DEFAULTS, "max_tokens": max_tokens}
    added: dict[str, tuple[Any, Any]] = {name: (kind, defaults.get(name)) for name, kind in flags.items()}
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
        "reasoning": _reasoning(*(given[name] for name in REASONING_FLAGS)),
        "draft_tokens": given["draft_tokens"],
        "prompt_lookup": given["prompt_lookup"],
        "model": given["adapter"] or "",
    }
    return options


def _reasoning(end: str | None, begin: str | None, tokens: int | None) -> Reasoning | None:
    if end is None:
        if begin is not None or tokens is not None:
            raise CommandError("--reasoning-begin and --reasoning-tokens need --reasoning-end", exit_code=2)
        return None
    return Reasoning(end_ids=_ids(end), begin_ids=_ids(begin) if begin is not None else (), max_tokens=tokens)


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
