"""The services behind the door: the SDK's client, which models they serve, and what each token id stands for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from tandem.client import AsyncClient, ModelInfo, TandemError, TokenizerInfo, Vocabulary
from tandem.http.call import Call
from tandem.http.errors import ApiError
from tandem.http.metrics import HttpMetrics
from tandem.http.settings import HttpSettings

logger = logging.getLogger("tandem.http")

FRESH_SECONDS = 10.0  # what the services say of themselves is believed for so long
ASK_SECONDS = 10.0
WAIT_SECONDS = 60.0  # for both services, at the start
_PAUSE = 0.5

T = TypeVar("T")


class _Fresh(Generic[T]):
    """An answer that is asked for again when it is old, once for all who wait; an old one is better than none."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._answer: T | None = None
        self._asked = 0.0

    async def get(self, age: float = FRESH_SECONDS) -> T:
        """The answer, at most `age` seconds old, or what was known before. Raises what asking raises."""
        if self._answer is not None and time.monotonic() - self._asked <= age:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_once())
            self._asking.add_done_callback(self._done)
        return await asyncio.shield(self._asking)

    async def _ask_once(self) -> T:
        try:
            self._answer = await self._ask()
        except TandemError:
            if self._answer is None:
                raise
        self._asked = time.monotonic()
        return self._answer

    def _done(self, task: asyncio.Task[T]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # those who waited may have left


class Upstream:
    """Use it from one event loop."""

    def __init__(self, settings: HttpSettings, metrics: HttpMetrics) -> None:
        self.tokenizer = settings.tokenizer_name
        self.began = int(time.time())  # what models say of their age
        self._salts = settings.cache_per_caller
        self.client = AsyncClient(
            settings.tokenizer_address,
            settings.worker_address,
            timeout=settings.request_seconds,
            credentials=settings.credentials(),
            registry=metrics.registry,
        )
        self._known: dict[str, ModelInfo] = {}
        self._models = _Fresh(self._ask_models)
        self._described = _Fresh(self._describe)
        self._vocabulary: Vocabulary | None = None
        self._loading = asyncio.Lock()

    async def wait(self) -> None:
        """Until both services answer; not for ever, because requests tell what is wrong better. What it waits for is
        told when it changes: nothing else says why a door refuses all requests."""
        until, told = time.monotonic() + WAIT_SECONDS, ""
        while True:
            try:
                await self.client.get_tokenizer(self.tokenizer, timeout=ASK_SECONDS)
                if await self.models(age=0.0):
                    return
                waits_for = "no worker tells what it serves"
            except TandemError as error:
                waits_for = str(error)
            if waits_for != told:
                told = waits_for
                logger.info("waiting: %s", told)
            if time.monotonic() > until:
                logger.warning("serving without what is not there: %s", waits_for)
                return
            await asyncio.sleep(_PAUSE)

    async def models(self, age: float = FRESH_SECONDS) -> dict[str, ModelInfo]:
        """The models that the workers serve, by their names and by those of the adapters beside them; empty where none
        of them tells."""
        return await self._models.get(age)

    async def check_model(self, name: str, call: Call) -> None:
        """Raises ApiError for a model that is not served; one that became known just now is found too."""
        known = await self.models()
        if name not in known:
            known = await self.models(age=1.0)
        if known and name not in known:
            names = ", ".join(sorted(known))
            message = f"the model is not served here; served are: {names}"
            raise ApiError(404, message, param="model", code="model_not_found")
        call.model = name if known else "unknown"

    async def vocabulary(self) -> Vocabulary:
        """What each id decodes to."""
        fingerprint = (await self._described.get()).fingerprint
        async with self._loading:
            if self._vocabulary is None or self._vocabulary.tokenizer.fingerprint != fingerprint:
                self._vocabulary = await self.client.get_vocabulary(self.tokenizer)
            return self._vocabulary

    def options(self, call: Call, model: str, salt: str = "") -> dict[str, Any]:
        """Keywords of every generation of this request."""
        found: dict[str, Any] = {"model": model, "tokenizer": self.tokenizer, **call.options}
        if self._salts:
            # Lengths keep every pair of caller and salt apart; the digest has one length.
            found["cache_salt"] = hashlib.sha256(f"{len(call.caller)}:{call.caller}{salt}".encode()).hexdigest()
        return found

    async def close(self) -> None:
        """Ends what still runs."""
        await self.client.close()

    async def _ask_models(self) -> dict[str, ModelInfo]:
        answers = await self.client.get_models(timeout=ASK_SECONDS)
        served = [model for model in answers.values() if model is not None]
        adapters = {name: model for model in served for name in model.adapters}
        found = {model.name: model for model in served} | adapters
        self._known = found or self._known  # workers that restart tell nothing
        return self._known

    async def described(self) -> TokenizerInfo:
        """What the tokenizer is."""
        return await self._described.get()

    async def bounds_reasoning(self, *, with_tools: bool) -> bool:
        """Whether the length of the model's reasoning can be bounded, where it reasons at all."""
        told = await self.described()
        return bool(told.reasoning_end_ids) and not (with_tools and told.answer_format == "harmony")

    async def _describe(self) -> TokenizerInfo:
        return await self.client.get_tokenizer(self.tokenizer, timeout=ASK_SECONDS)
