"""The tokenizers that a service holds, by name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from svc_common.errors import StartError, not_found
from tokenizer_svc.formats import FormatError, load_tokenizer
from tokenizer_svc.metrics import NamedMetrics, TokenizerMetrics
from tokenizer_svc.tokenizer import Tokenizer

logger = logging.getLogger("tokenizer_svc")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer under its name."""

    name: str
    tokenizer: Tokenizer
    metrics: NamedMetrics


class LoadedTokenizers:
    """All of them; the first is the default."""

    def __init__(self, metrics: TokenizerMetrics) -> None:
        self._metrics = metrics
        self._by_name: dict[str, Loaded] = {}
        self._default: Loaded | None = None

    async def load(self, paths: Mapping[str, Path], llama3_version: str) -> None:
        """Loads them in a thread, one after the other. Raises StartError with the first that cannot be loaded."""
        for name, path in paths.items():
            started = time.monotonic()
            try:
                tokenizer = await asyncio.to_thread(load_tokenizer, path, llama3_version=llama3_version)
            except FormatError as error:
                raise StartError(f"tokenizer {name!r} cannot be loaded: {error}") from None
            loaded = self._by_name[name] = Loaded(name, tokenizer, self._metrics.named(name))
            self._default = self._default or loaded
            logger.info(
                "tokenizer %s: %s of %d tokens from a %s file, fingerprint %s, loaded in %.2f s",
                name,
                tokenizer.type.name,
                tokenizer.vocabulary_size,
                tokenizer.config.source,
                tokenizer.fingerprint[:16],
                time.monotonic() - started,
            )

    def get(self, name: str) -> Loaded:
        """The tokenizer of that name, the default for the empty one. Raises NOT_FOUND."""
        loaded = self._by_name.get(name) if name else self._default
        if loaded is None:
            raise not_found("tokenizer", name, list(self._by_name))
        return loaded

    def all(self) -> list[Loaded]:
        """The default first, then by name."""
        return sorted(self._by_name.values(), key=lambda loaded: (loaded is not self._default, loaded.name))
