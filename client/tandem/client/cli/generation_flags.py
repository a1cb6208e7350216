"""The flags of a generation, once for every command that makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..params import GenerateOptions
from . import options as o
from .shared_flags import with_shared_flags
from .terminal import CommandError

GenerationFlags = Callable[[], GenerateOptions]  # raises CommandError, within the command's own handling of errors

_SAMPLING, _PENALTIES, _CONSTRAINTS = "Sampling", "Penalties", "Constraints"


def _number(flag: str, words: str, panel: str = _SAMPLING) -> Any:
    return Annotated[float | None, typer.Option(flag, help=words, rich_help_panel=panel)]


def _integer(flag: str, words: str, panel: str = _SAMPLING) -> Any:
    return Annotated[int | None, typer.Option(flag, help=words, rich_help_panel=panel)]


def _list(flag: str, words: str, panel: str = _CONSTRAINTS) -> Any:
    return Annotated[list[str] | None, typer.Option(flag, help=words, rich_help_panel=panel)]


# Flag names are those of SamplingParams; so are the parameters that they fill.
SAMPLING_FLAGS: dict[str, Any] = {
    "preset": Annotated[
        str | None,
        typer.Option(
            "--preset", help="creative, balanced, focused or deterministic; flags win.", rich_help_panel=_SAMPLING
        ),
    ],
    "strategy": Annotated[
        str | None,
        typer.Option(
            "--strategy", help="greedy, top_k, top_p, temperature or combined; flags win.", rich_help_panel=_SAMPLING
        ),
    ],
    "temperature": o.Temperature,
    "dynamic_temperature_range": _number("--dynamic-temperature-range", "By entropy, so far up and down; 0 is off."),
    "dynamic_temperature_exponent": _number("--dynamic-temperature-exponent", "How it follows the entropy."),
    "temperature_last": Annotated[
        bool | None,
        typer.Option(
            "--temperature-last/--temperature-first",
            help="After the filters (the default) or before.",
            rich_help_panel=_SAMPLING,
        ),
    ],
    "top_k": o.TopK,
    "tail_free_z": _number("--tail-free-z", "0 to 1; 1 is off."),
    "typical_p": _number("--typical-p", "0 to 1; 1 is off."),
    "top_p": o.TopP,
    "min_p": o.MinP,
    "top_a": _number("--top-a", "0 to 1; 0 is off."),
    "xtc_probability": _number("--xtc-probability", "How often the most probable tokens are excluded; 0 is off."),
    "xtc_threshold": _number("--xtc-threshold", "Of those that reach it, all but the last."),
    "mirostat": _integer("--mirostat", "1 or 2; takes the place of the filters; 0 is off."),
    "mirostat_tau": _number("--mirostat-tau", "Bits of surprise to aim at."),
    "mirostat_eta": _number("--mirostat-eta", "How fast."),
    "seed": o.Seed,
    "repetition_penalty": o.RepetitionPenalty,
    "repetition_window": o.RepetitionWindow,
    "repetition_decay": _integer("--repetition-decay", "Tokens over which penalties fade.", _PENALTIES),
    "presence_penalty": _number("--presence-penalty", "-2 to 2; for what occurred.", _PENALTIES),
    "frequency_penalty": _number("--frequency-penalty", "-2 to 2; for each occurrence.", _PENALTIES),
    "dry_multiplier": _number("--dry-multiplier", "For going on with a repetition; 0 is off.", _PENALTIES),
    "dry_base": _number("--dry-base", "At least 1; it grows by this with each token.", _PENALTIES),
    "dry_allowed_length": _integer("--dry-allowed-length", "Repetitions up to so long are free.", _PENALTIES),
    "dry_window": _integer("--dry-window", "How many last tokens it looks at.", _PENALTIES),
    "dry_sequence_breakers": _list("--dry-breaker", "Ids, such as 13 or 5,6, that end a repetition.", _PENALTIES),
    "logit_bias": _list("--logit-bias", "ID=NUMBER, added to a token's logit; repeatable."),
    "allowed_ids": _list("--allow-id", "Nothing but these ids, such as 5 or 5,6; repeatable."),
    "banned_ids": _list("--ban-id", "Never these ids; repeatable."),
    "banned_sequences": _list("--ban-sequence", "Never these ids in a row, such as 5,6; repeatable."),
}
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
    """What the flags ask for; raises CommandError."""
    values: dict[str, Any] = {name: given[name] for name in SAMPLING_FLAGS}
    for name in ("allowed_ids", "banned_ids"):
        values[name] = [id_ for text in given[name] or [] for id_ in _ids(text)] or None
    for name in ("banned_sequences", "dry_sequence_breakers"):
        values[name] = [_ids(text) for text in given[name] or []] or None
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
        raise CommandError(f"{text!r} is no list of token ids, such as 5 or 5,6", exit_code=2) from None


def _bias(text: str) -> tuple[int, float]:
    id_, _, bias = text.partition("=")
    try:
        return int(id_), float(bias)
    except ValueError:
        raise CommandError(f"--logit-bias {text!r} is not ID=NUMBER, such as 5=-2.5", exit_code=2) from None
