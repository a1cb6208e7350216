"""Asks the tokenizer service, once at start, whether it goes together with the model, and for its vocabulary. It is
asked while the model is loaded, and waited for once that is done."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time

import grpc

from tandem.common.addresses import connectable
from tandem.common.errors import StartError
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tandem.worker.engine.process.messages import EngineInfo, Vocabulary
from tandem.worker.settings import WorkerSettings

logger = logging.getLogger("tandem.worker")


Metadata = tuple[tuple[str, str], ...]

_AGAIN_SECONDS = 0.2
_LOOK_SECONDS = 0.02
_TELL_SECONDS = 10.0  # between two lines about a service that is not there
# A service that starts late is found again within about a second, not with the minutes that gRPC may pause by itself.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]
_NO_TEXT = (pb.TOKEN_TYPE_CONTROL, pb.TOKEN_TYPE_UNKNOWN, pb.TOKEN_TYPE_UNUSED)


def read_peer_files(settings: WorkerSettings) -> tuple[grpc.ChannelCredentials | None, Metadata]:
    """Reads the files for the channel and the calls to the tokenizer service; raises StartError."""
    peer = settings.tokenizer_peer()
    try:
        return peer.credentials(), peer.metadata()
    except (OSError, ValueError) as error:
        raise StartError(f"tokenizer_address {settings.tokenizer_address}: {error}") from None


def _hint(code: grpc.StatusCode, plain: bool) -> str:
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return "; its token is read from tokenizer_token_file"
    if code is grpc.StatusCode.UNAVAILABLE and plain:
        return "; if it speaks TLS, set tokenizer_tls_ca or tokenizer_tls"
    return ""


class TokenizerCheck:
    """Asks from now on, in a task of its own."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._until = math.inf  # on the monotonic clock: how long the service may take to be there
        self._answer = asyncio.create_task(self._ask())

    async def against(self, info: EngineInfo) -> tuple[str, Vocabulary]:
        """Returns the tokenizer's fingerprint and the bytes of the model's ids; raises StartError if it does not answer
        in time from now on, or has ids of text that the model has not.

        Others it may have: Gemma 3 1B has a word for pictures behind its embedding, and ids that pad the embedding of a
        larger model stand beside the tokenizer that a smaller one shares.
        """
        settings = self._settings
        self._until = time.monotonic() + settings.tokenizer_wait_seconds
        address, tokenizer, pieces, special_ids = await self._answer
        size, no_text = info.vocabulary_size, set(special_ids)
        if any(one not in no_text for one in range(size, len(pieces))):
            raise StartError(
                f"vocabulary mismatch: tokenizer {tokenizer.name!r} at {address} has {tokenizer.vocabulary_size} ids, "
                f"the model in {settings.model} only {size}"
            )
        if behind := [pieces[one].decode("utf-8", "replace") for one in range(size, len(pieces)) if pieces[one]]:
            what = ", ".join(behind[:3]) + (", ..." if len(behind) > 3 else "")
            logger.warning(
                "the model has no id for what tokenizer %s has from id %d on: %s", tokenizer.name, size, what
            )
        if settings.tokenizer_fingerprint and settings.tokenizer_fingerprint != tokenizer.fingerprint:
            raise StartError(
                f"tokenizer {tokenizer.name!r} at {address} has fingerprint {tokenizer.fingerprint}, "
                f"not tokenizer_fingerprint {settings.tokenizer_fingerprint}"
            )
        logger.info("tokenizer %s at %s: fingerprint %s", tokenizer.name, address, tokenizer.fingerprint)
        return tokenizer.fingerprint, Vocabulary.of(pieces[:size], [one for one in special_ids if one < size])

    async def stop(self) -> None:
        """Asks no more. May be called at any time."""
        self._answer.cancel()
        await asyncio.gather(self._answer, return_exceptions=True)

    async def _ask(self) -> tuple[str, pb.Tokenizer, list[bytes], list[int]]:
        settings = self._settings
        address = await self._address()
        credentials, metadata = read_peer_files(settings)
        options = [*settings.tokenizer_peer().options(), *_RECONNECT]
        if credentials is None:
            opened = grpc.aio.insecure_channel(address, options)
        else:
            opened = grpc.aio.secure_channel(address, credentials, options)
        async with opened as channel:
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            try:
                tokenizer = await self._tokenizer(stub, address, metadata)
                pieces: list[bytes] = []
                special_ids: list[int] = []
                request = pb.DownloadVocabularyRequest(tokenizer=settings.tokenizer_name)
                timeout = settings.tokenizer_wait_seconds
                async for chunk in stub.DownloadVocabulary(request, timeout=timeout, metadata=metadata):
                    special_ids += [chunk.first_id + i for i, kind in enumerate(chunk.types) if kind in _NO_TEXT]
                    pieces += chunk.pieces
            except grpc.aio.AioRpcError as error:
                raise StartError(
                    f"tokenizer_address {address}: {error.code().name}: {error.details()} "
                    f"(waited up to {settings.tokenizer_wait_seconds:g} s{_hint(error.code(), credentials is None)})"
                ) from error
        return address, tokenizer, pieces, special_ids

    async def _address(self) -> str:
        """Returns the service's address, once it has written it where it is to be read from a file. Raises
        StartError."""
        file = self._settings.tokenizer_address_file
        if file is None:
            return self._settings.tokenizer_address
        while not file.exists():
            if time.monotonic() >= self._until:
                raise StartError(
                    f"tokenizer_address_file {file}: no tokenizer service has written it "
                    f"(waited up to {self._settings.tokenizer_wait_seconds:g} s)"
                )
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            return connectable(str(json.loads(file.read_text("utf-8"))["address"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise StartError(f"tokenizer_address_file {file}: it is not what a service's address_file is") from None

    async def _tokenizer(
        self, stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub, address: str, metadata: Metadata
    ) -> pb.Tokenizer:
        """Asks until the service answers: it may start beside us. Raises the last reason why it did not, which a call
        that waits for the connection by itself would not tell."""
        request = pb.GetTokenizerRequest(tokenizer=self._settings.tokenizer_name)
        told = 0.0
        while True:
            left = min(self._settings.tokenizer_wait_seconds, self._until - time.monotonic())
            try:
                return (await stub.GetTokenizer(request, timeout=max(0.1, left), metadata=metadata)).tokenizer
            except grpc.aio.AioRpcError as error:
                now = time.monotonic()
                if error.code() is not grpc.StatusCode.UNAVAILABLE or now >= self._until:
                    raise
                if now - told >= _TELL_SECONDS:
                    told = now
                    logger.info("waiting for the tokenizer at %s: %s", address, error.details())
                await asyncio.sleep(min(_AGAIN_SECONDS, self._until - now))
