"""Asks the tokenizer service, once at start, whether it goes together with the model, and for its vocabulary."""

from __future__ import annotations

import logging

import grpc

from svc_common.errors import StartError
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from worker_svc.engine.messages import EngineInfo, Vocabulary
from worker_svc.settings import WorkerSettings

logger = logging.getLogger("worker_svc")


_NO_TEXT = (pb.TOKEN_TYPE_CONTROL, pb.TOKEN_TYPE_UNKNOWN, pb.TOKEN_TYPE_UNUSED)


async def check_tokenizer(settings: WorkerSettings, info: EngineInfo) -> tuple[str, Vocabulary]:
    """The tokenizer's fingerprint and what its ids say; raises StartError if it is not there in time or has more ids
    than the model."""
    address = settings.tokenizer_address
    async with grpc.aio.insecure_channel(address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        try:
            response = await stub.GetTokenizer(
                pb.GetTokenizerRequest(tokenizer=settings.tokenizer_name),
                timeout=settings.tokenizer_wait_seconds,
                wait_for_ready=True,
            )
            pieces: list[bytes] = []
            special_ids: list[int] = []
            request = pb.DownloadVocabularyRequest(tokenizer=settings.tokenizer_name)
            async for chunk in stub.DownloadVocabulary(request, timeout=settings.tokenizer_wait_seconds):
                special_ids += [chunk.first_id + i for i, kind in enumerate(chunk.types) if kind in _NO_TEXT]
                pieces += chunk.pieces
        except grpc.aio.AioRpcError as error:
            raise StartError(
                f"tokenizer_address {address}: {error.code().name}: {error.details()} "
                f"(waited up to {settings.tokenizer_wait_seconds:g} s)"
            ) from error
    tokenizer = response.tokenizer
    if tokenizer.vocabulary_size > info.vocabulary_size:
        raise StartError(
            f"vocabulary mismatch: tokenizer {tokenizer.name!r} at {address} has {tokenizer.vocabulary_size} ids, "
            f"the model in {settings.model} only {info.vocabulary_size}"
        )
    if settings.tokenizer_fingerprint and settings.tokenizer_fingerprint != tokenizer.fingerprint:
        raise StartError(
            f"tokenizer {tokenizer.name!r} at {address} has fingerprint {tokenizer.fingerprint}, "
            f"not tokenizer_fingerprint {settings.tokenizer_fingerprint}"
        )
    logger.info("tokenizer %s at %s: fingerprint %s", tokenizer.name, address, tokenizer.fingerprint)
    return tokenizer.fingerprint, Vocabulary.of(pieces, special_ids)
