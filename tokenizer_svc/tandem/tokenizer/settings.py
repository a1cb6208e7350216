"""Settings of the tokenizer service; each is a flag, an environment variable and a key of the configuration file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from tandem.common.addresses import is_loopback
from tandem.common.machine import available_cores
from tandem.common.settings import ServiceSettings, Strings
from tandem.tokenizer.formats import FILE_NAMES, RankSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*")


class TokenizerSettings(ServiceSettings):
    """The operator's settings; the defaults serve one tokenizer on all cores."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-tokenizer", env_prefix="TANDEM_TOKENIZER_")

    tokenizer: Strings = Field(
        default=(),
        description="NAME=PATH or PATH of a tokenizer file or model folder; repeatable, the first is the default",
    )
    load_on_demand: bool = Field(
        default=False, description="load only the default tokenizer at start, the others at first use"
    )
    max_loaded_tokenizers: int = Field(
        default=64, ge=2, description="most tokenizers in memory; on demand, the least recently used is unloaded"
    )
    llama3_version: Literal["auto", "3.0", "3.1"] = Field(
        default="auto",
        description="version of the special tokens of a Llama 3 rank file without a tokenizer_config.json",
    )
    rank_pattern: Strings = Field(
        default=(),
        description="NAME=PATTERN: the regular expression (or a GGUF file's name of it, as gpt-4o) that cuts text for "
        "that tokenizer's tiktoken rank file; repeatable",
    )
    rank_special: Strings = Field(
        default=(), description="NAME=ID=TEXT: a special token of the rank file of that tokenizer; repeatable"
    )
    max_input_bytes: int = Field(default=4 << 20, ge=1, description="longest text of one input")
    max_batch_inputs: int = Field(default=4096, ge=1, le=4096, description="most inputs in one batch")
    max_decode_ids: int = Field(default=1 << 20, ge=1, description="most ids to decode in one call")
    max_output_bytes: int = Field(default=16 << 20, ge=1, description="longest text or pieces in one response")
    max_streams_per_call: int = Field(default=16_384, ge=1, description="streams open at once in one DecodeStream call")
    max_stream_ids: int = Field(default=65_536, ge=1, description="most ids in one DecodeStream request")
    threads: int = Field(
        default=0, ge=0, le=1024, description="threads for larger inputs; 0: one for each available core"
    )
    inline_bytes: int = Field(default=4096, ge=0, description="text up to this size is encoded without a thread")
    encode_cache_bytes: int = Field(
        default=64 << 20, ge=0, description="memory of the encode cache of each tokenizer; 0: no cache"
    )
    max_chat_messages: int = Field(default=4096, ge=1, description="most messages in one conversation")
    chat_renderers: int = Field(default=2, ge=1, le=64, description="processes that render tokenizers' chat templates")
    caller_templates: Literal["auto", "yes", "no"] = Field(
        default="auto",
        description="whether callers may send chat templates of their own; auto: where host is a loopback address",
    )
    caller_template_renderers: int = Field(
        default=2, ge=1, le=64, description="processes that render callers' chat templates"
    )
    caller_template_queue: int = Field(
        default=4, ge=1, description="conversations with their own template that one caller may have queued or running"
    )
    chat_render_seconds: float = Field(default=2.0, gt=0, description="how long one chat template may take")
    max_queued_jobs: int = Field(default=256, ge=0, description="inputs that may wait for a thread; more are refused")

    @model_validator(mode="after")
    def _check_tokenizers(self) -> TokenizerSettings:
        self.tokenizers()
        self.rank_settings()
        return self

    def tokenizers(self) -> dict[str, Path]:
        """Maps names to paths, the default first. Raises ValueError for a name that is empty, malformed or given
        twice."""
        found: dict[str, Path] = {}
        for entry in self.tokenizer:
            name, path = _name_and_path(entry)
            if not _NAME.fullmatch(name) or len(name) > 256:
                raise ValueError(f"--tokenizer {entry}: {name!r} is not a name; use letters, digits and . _ - /")
            if name in found:
                raise ValueError(f"--tokenizer {entry}: the name {name!r} is given twice; choose names with NAME=PATH")
            found[name] = path
        return found

    def rank_settings(self) -> dict[str, RankSettings]:
        """Maps names of tokenizers to what is said of their rank files. Raises ValueError."""
        names = self.tokenizers()
        patterns: dict[str, str] = {}
        specials: dict[str, dict[int, str]] = {}
        for entry in self.rank_pattern:
            name, _, pattern = entry.partition("=")
            if name not in names or not pattern or name in patterns:
                raise ValueError(f"--rank-pattern {entry}: NAME=PATTERN is expected, once for a NAME of --tokenizer")
            patterns[name] = pattern
        for entry in self.rank_special:
            name, index, text = (*entry.split("=", 2), "", "")[:3]
            found = specials.setdefault(name, {})
            if name not in names or not (index.isascii() and index.isdecimal() and len(index) < 10) or not text:
                raise ValueError(f"--rank-special {entry}: NAME=ID=TEXT is expected, for a NAME of --tokenizer")
            if int(index) in found:
                raise ValueError(f"--rank-special {entry}: the id {index} is given twice")
            found[int(index)] = text
        return {
            name: RankSettings(patterns.get(name, ""), specials.get(name, {}))
            for name in names
            if name in patterns or name in specials
        }

    @property
    def takes_caller_templates(self) -> bool:
        """True when callers may send chat templates of their own."""
        return self.caller_templates == "yes" or (self.caller_templates == "auto" and is_loopback(self.host))

    @property
    def thread_count(self) -> int:
        """The number of threads that encode, at least one."""
        return self.threads or available_cores()


def _name_and_path(entry: str) -> tuple[str, Path]:
    """Splits NAME=PATH. A bare path is named after its folder where the file has a name that every model's has."""
    name, equals, path = entry.partition("=")
    if equals and _NAME.fullmatch(name) and not Path(entry).exists():
        return name, Path(path)
    place = Path(entry).absolute()
    if place.name in FILE_NAMES:
        return place.parent.name, Path(entry)
    return (place.name if place.is_dir() else place.stem), Path(entry)
