"""The tokenizers that a service holds, by name: loaded at start or when first asked for, and loaded again on request.

A stream or call keeps the tokenizer that it began with, whatever is loaded or dropped meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.common.errors import StartError, failed_precondition, not_found
from tandem.tokenizer.answers.formats import Format
from tandem.tokenizer.answers.signs import format_of
from tandem.tokenizer.chat.formats import template_of
from tandem.tokenizer.chat.named_templates import template_for
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.rpc.metrics import NamedMetrics, TokenizerMetrics
from tandem.tokenizer.rpc.small_encodes import SmallEncodes, small_encodes
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabulary import SpecialToken

logger = logging.getLogger("tandem.tokenizer")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer with its name."""

    name: str
    tokenizer: Tokenizer
    cache: EncodeCache
    metrics: NamedMetrics
    template: str | None  # of its chats
    answer_format: Format | None  # of what the model says, as its chat template gives it away
    specials: Mapping[str, SpecialToken]  # by their texts
    fingerprint_field: bytes  # of an EncodeResponse
    small: SmallEncodes | None


class LoadedTokenizers:
    """Holds at most `max_loaded_tokenizers` of those in the settings; the first is the default. For one event loop."""

    def __init__(self, settings: TokenizerSettings, metrics: TokenizerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._paths = settings.tokenizers()
        self._default = next(iter(self._paths), "")
        self._loaded: dict[str, Loaded] = {}  # the least recently asked for first
        self._locks = {name: asyncio.Lock() for name in self._paths}

    async def start(self) -> None:
        """Loads all tokenizers, or only the default where the others are loaded on demand. Raises StartError."""
        if not self._paths:
            raise StartError("no tokenizer is given; name at least one with --tokenizer PATH")
        limit = self._settings.max_loaded_tokenizers
        if not self._settings.load_on_demand and len(self._paths) > limit:
            raise StartError(
                f"{len(self._paths)} tokenizers are given, but max_loaded_tokenizers is {limit}; raise it, or set "
                f"load_on_demand"
            )
        for name in self._paths:
            try:
                await self._load(name)
            except FormatError as error:
                raise StartError(f"tokenizer {name!r} cannot be loaded: {error}") from None
            if self._settings.load_on_demand:
                break

    def at_hand(self, name: str) -> Loaded | None:
        """Returns the tokenizer of that name, "" being the default, if it is loaded."""
        loaded = self._loaded.get(name or self._default)
        if loaded is not None and self._settings.load_on_demand:
            self._loaded[loaded.name] = self._loaded.pop(loaded.name)
        return loaded

    async def get(self, name: str) -> Loaded:
        """Returns the tokenizer of that name, and loads it if it must be. Raises NOT_FOUND, or FAILED_PRECONDITION
        where its file cannot be read."""
        loaded = self.at_hand(name)
        if loaded is not None:
            return loaded
        name = name or self._default
        if name not in self._paths:
            raise not_found("tokenizer", name, list(self._paths))
        async with self._locks[name]:
            loaded = self.at_hand(name)
            if loaded is not None:
                return loaded
            try:
                return await self._load(name)
            except FormatError as error:
                logger.error("tokenizer %s cannot be loaded: %s", name, error)
                raise failed_precondition(
                    f"the tokenizer {name!r} cannot be loaded", reason="TOKENIZER_UNREADABLE"
                ) from None

    def all(self) -> Sequence[Loaded]:
        """Returns those that are loaded, the default first, then by name."""
        return sorted(self._loaded.values(), key=lambda loaded: (loaded.name != self._default, loaded.name))

    async def reload(self) -> None:
        """Reads the files of all loaded tokenizers again. A tokenizer whose file cannot be read stays as it is."""
        for name in list(self._loaded):
            async with self._locks[name]:
                try:
                    await self._load(name)
                except FormatError as error:
                    logger.error("tokenizer %s is not reloaded: %s", name, error)

    async def _load(self, name: str) -> Loaded:
        started = time.monotonic()
        path: Path = self._paths[name]
        settings = self._settings
        ranks = settings.rank_settings().get(name)
        tokenizer = await asyncio.to_thread(load_tokenizer, path, llama3_version=settings.llama3_version, ranks=ranks)
        cache = EncodeCache(self._settings.encode_cache_bytes)
        if self._settings.encode_cache_bytes:
            tokenizer = tokenizer.with_cache(cache)
        template = template_of(tokenizer)
        metrics = self._metrics.named(name, cache)
        longest = min(settings.inline_bytes, settings.max_input_bytes)
        fingerprint = pb.EncodeResponse(fingerprint=tokenizer.fingerprint).SerializeToString()
        loaded = Loaded(
            name,
            tokenizer,
            cache,
            metrics,
            template,
            format_of(template_for(template, has_tools=True)),
            {token.text: token for token in tokenizer.table.specials},
            fingerprint,
            small_encodes(tokenizer, fingerprint, longest, metrics.encoded.small),
        )
        self._loaded.pop(name, None)
        self._loaded[name] = loaded
        logger.info(
            "tokenizer %s: %s of %d tokens from a %s file, fingerprint %s, loaded in %.2f s; encoder: %s",
            name,
            tokenizer.type.name,
            tokenizer.vocabulary_size,
            tokenizer.config.source,
            tokenizer.fingerprint[:16],
            time.monotonic() - started,
            tokenizer.vocabulary.encoder,
        )
        while len(self._loaded) > self._settings.max_loaded_tokenizers:
            oldest = next(each for each in self._loaded if each not in (name, self._default))
            del self._loaded[oldest]
            logger.info("tokenizer %s is unloaded: %d others were used more recently", oldest, len(self._loaded))
        return loaded
