"""The tokenizer's unary calls: text to ids and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

from tandem.client.breakers import beginnings
from tandem.client.decode_calls import SERVICE, DecodeCalls
from tandem.client.errors import CancelledError, InternalError, UnavailableError
from tandem.client.patience import Patience, restarts
from tandem.client.rpc import CLOSED, CallContext, Response, unary
from tandem.client.settings import FailoverSettings
from tandem.client.types import ChatEncoding, Encoding, SpecialToken, TokenizerInfo, Vocabulary
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

T = TypeVar("T")
M = TypeVar("M", pb.EncodeInput, pb.DecodeInput)

# Limits of one batch message; larger batches are sent in several.
BATCH_INPUTS = 4096
BATCH_BYTES = 1024 * 1024  # of requests; offsets and pieces make a response several times larger

MOST_BREAKERS_KEPT = 256  # texts whose ids are remembered
MOST_REST_IDS = 15  # of a breaker behind its first id: together what the contract takes

_TOKEN_TYPES = {number: name.removeprefix("TOKEN_TYPE_").lower() for name, number in pb.TokenType.items()}


class TextService:
    """The client of one tokenizer service. Every method raises StatusError."""

    def __init__(
        self,
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub,
        failover: FailoverSettings,
        tracer: Tracer | None = None,
    ) -> None:
        self.stub = stub
        self._failover = failover
        self.decode_calls = DecodeCalls(stub, tracer)
        self._fingerprints: dict[str, str] = {}
        self._pieces: dict[str, tuple[str, list[bytes]]] = {}  # a fingerprint, and the bytes of each id; by tokenizer
        self._breakers: dict[tuple[str, str], list[list[int]]] = {}  # by tokenizer and text

    async def close(self) -> None:
        """Ends the calls that still run, and drops the channel."""
        await self.decode_calls.close()
        self.stub = CLOSED

    async def _ask(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, Response], request: object, context: CallContext
    ) -> Response:
        """Calls a method and retries as needed."""
        try:
            return await self._retried(partial(unary, method, request, context, service=SERVICE), context)
        finally:
            del method  # see rpc._Errors

    async def _retried(self, call: Callable[[], Awaitable[T]], context: CallContext) -> T:
        """Calls again as needed, because no method has side effects."""
        patience = Patience(self._failover)
        try:
            while True:
                try:
                    answer = await call()
                except (UnavailableError, CancelledError) as error:
                    patience.failed(error, may_wait=restarts(error, reached=self.decode_calls.reached))
                    await context.sleep(patience, error, SERVICE)
                else:
                    self.decode_calls.reached = True
                    return answer
        finally:
            del call  # see rpc._Errors

    async def encode(
        self, tokenizer: str, text: pb.EncodeInput, context: CallContext, *, offsets: bool = False, pieces: bool = False
    ) -> Encoding:
        request = pb.EncodeRequest(tokenizer=tokenizer, input=text, include_offsets=offsets, include_pieces=pieces)
        response = await self._ask(self.stub.Encode, request, context)
        return _encoding(response.encoding, response.fingerprint)

    async def encode_batch(
        self,
        tokenizer: str,
        texts: Sequence[pb.EncodeInput],
        context: CallContext,
        *,
        offsets: bool = False,
        pieces: bool = False,
    ) -> list[Encoding]:
        encodings: list[Encoding] = []
        for part in _parts(texts):
            request = pb.BatchEncodeRequest(
                tokenizer=tokenizer, inputs=part, include_offsets=offsets, include_pieces=pieces
            )
            response = await self._ask(self.stub.BatchEncode, request, context)
            encodings.extend(_encoding(encoding, response.fingerprint) for encoding in response.encodings)
        return encodings

    async def encode_chat(
        self, request: pb.EncodeChatRequest, context: CallContext
    ) -> tuple[ChatEncoding, pb.AnswerGuide | None]:
        """Returns the ids, and what guides the answer where that was asked for."""
        response = await self._ask(self.stub.EncodeChat, request, context)
        places = response.content_ranges
        encoding = ChatEncoding(
            ids=list(response.ids),
            fingerprint=response.fingerprint,
            total_tokens=len(response.ids),
            pieces=list(response.pieces),
            rendered_text=response.rendered_text,
            content_ranges=list(zip(places[::2], places[1::2], strict=True)),
        )
        return encoding, response.answer if response.HasField("answer") else None

    async def count(self, tokenizer: str, texts: Sequence[pb.EncodeInput], context: CallContext) -> list[int]:
        counts: list[int] = []
        for part in _parts(texts):
            request = pb.CountTokensRequest(tokenizer=tokenizer, inputs=part)
            counts.extend((await self._ask(self.stub.CountTokens, request, context)).counts)
        return counts

    async def decode(
        self, tokenizer: str, ids: Sequence[int], options: pb.DecodeOptions, context: CallContext
    ) -> pb.DecodedText:
        request = pb.DecodeRequest(tokenizer=tokenizer, input=pb.DecodeInput(ids=ids), options=options)
        return (await self._ask(self.stub.Decode, request, context)).decoded

    async def decode_batch(
        self, tokenizer: str, id_lists: Sequence[Sequence[int]], options: pb.DecodeOptions, context: CallContext
    ) -> list[str]:
        texts: list[str] = []
        for part in _parts([pb.DecodeInput(ids=ids) for ids in id_lists]):
            request = pb.BatchDecodeRequest(tokenizer=tokenizer, inputs=part, options=options)
            response = await self._ask(self.stub.BatchDecode, request, context)
            texts.extend(decoded.text for decoded in response.decoded)
        return texts

    async def tokenizers(self, context: CallContext) -> list[TokenizerInfo]:
        response = await self._ask(self.stub.ListTokenizers, pb.ListTokenizersRequest(), context)
        return [_tokenizer_info(tokenizer) for tokenizer in response.tokenizers]

    async def tokenizer(self, name: str, context: CallContext) -> TokenizerInfo:
        request = pb.GetTokenizerRequest(tokenizer=name)
        response = await self._ask(self.stub.GetTokenizer, request, context)
        return _tokenizer_info(response.tokenizer)

    async def vocabulary(self, name: str, context: CallContext) -> Vocabulary:
        return await self._retried(partial(self._download, name, context), context)

    async def _download(self, name: str, context: CallContext) -> Vocabulary:
        request = pb.DownloadVocabularyRequest(tokenizer=name)
        info: TokenizerInfo | None = None
        pieces: list[bytes] = []
        types: list[str] = []
        scores: list[float] = []
        call = self.stub.DownloadVocabulary(request, timeout=context.timeout(SERVICE), metadata=context.metadata())
        try:
            with context.errors(SERVICE):
                async for part in call:
                    info = info or _tokenizer_info(part.tokenizer)
                    pieces += part.pieces
                    types += [_TOKEN_TYPES[kind] for kind in part.types]
                    scores += part.scores
        finally:
            del call  # see rpc._Errors
        if info is None or not len(pieces) == len(types) == info.vocabulary_size:
            raise InternalError(
                "the tokenizer sent a number of ids that differs from its vocabulary size",
                service=SERVICE,
                reason="STREAM_INCOMPLETE",
                request_id=context.request_id,
            )
        return Vocabulary(info, pieces, types, scores)

    async def pieces(self, tokenizer: str, context: CallContext) -> list[bytes]:
        """Returns the bytes of each id, which are asked for once."""
        if tokenizer not in self._pieces:
            vocabulary = await self.vocabulary(tokenizer, context)
            self._pieces[tokenizer] = (vocabulary.tokenizer.fingerprint, vocabulary.pieces)
        return self._pieces[tokenizer][1]

    async def breakers(self, tokenizer: str, texts: Sequence[str], context: CallContext) -> list[list[int]]:
        """Returns the ids of every way in which one of the texts can begin within a token; computed once for each
        text."""
        known = {text: self._breakers.get((tokenizer, text)) for text in texts}
        wanted = [text for text, ids in known.items() if ids is None]
        if wanted:
            pieces = await self.pieces(tokenizer, context)
            begun = {text: list(beginnings(text, pieces)) for text in wanted}
            rests = sorted({rest for found in begun.values() for _, rest in found if rest})
            inputs = [pb.EncodeInput(segments=[pb.TextSegment(text=rest)], add_special=False) for rest in rests]
            encoded = await self.encode_batch(tokenizer, inputs, context)
            ids = {"": [], **{rest: each.ids[:MOST_REST_IDS] for rest, each in zip(rests, encoded, strict=True)}}
            if len(self._breakers) + len(wanted) > MOST_BREAKERS_KEPT:
                self._breakers.clear()
            for text, found in begun.items():
                known[text] = self._breakers[tokenizer, text] = [[id_, *ids[rest]] for id_, rest in found]
        return [ids for found in known.values() for ids in found or ()]

    async def fingerprint(self, name: str, context: CallContext) -> str:
        """Returns the fingerprint of the tokenizer of that name, which is asked for once."""
        if name not in self._fingerprints:
            self._fingerprints[name] = (await self.tokenizer(name, context)).fingerprint
        return self._fingerprints[name]

    def serves(self, tokenizer: str, fingerprint: str) -> None:
        """Takes the fingerprint that the service told with ids: where another was known, the tokenizer was replaced."""
        of_pieces, _ = self._pieces.get(tokenizer, (fingerprint, []))
        if {of_pieces, self._fingerprints.get(tokenizer, fingerprint)} != {fingerprint}:
            self.forget_fingerprints()

    def forget_fingerprints(self) -> None:
        """Drops what is known, because a worker contradicted a fingerprint: the tokenizer may have been replaced."""
        self._fingerprints.clear()
        self._pieces.clear()
        self._breakers.clear()


def _parts(messages: Sequence[M]) -> Iterator[list[M]]:
    """Yields `messages` in groups that fit into one request each; none for an empty list."""
    part: list[M] = []
    size = 0
    for message in messages:
        message_size = message.ByteSize()
        if part and (len(part) == BATCH_INPUTS or size + message_size > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += message_size
    if part:
        yield part


def _encoding(message: pb.Encoding, fingerprint: str) -> Encoding:
    return Encoding(
        ids=list(message.ids),
        fingerprint=fingerprint,
        truncated=message.truncated,
        total_tokens=message.total_tokens,
        byte_offsets=list(message.byte_offsets),
        code_point_offsets=list(message.code_point_offsets),
        pieces=list(message.pieces),
        byte_ends=list(message.byte_ends),
        code_point_ends=list(message.code_point_ends),
        type_ids=list(message.type_ids),
    )


def _tokenizer_info(message: pb.Tokenizer) -> TokenizerInfo:
    return TokenizerInfo(
        name=message.name,
        vocabulary_type=pb.VocabularyType.Name(message.vocabulary_type).removeprefix("VOCABULARY_TYPE_").lower(),
        vocabulary_size=message.vocabulary_size,
        fingerprint=message.fingerprint,
        bos_id=message.bos_id if message.HasField("bos_id") else None,
        eos_id=message.eos_id if message.HasField("eos_id") else None,
        end_of_generation_ids=list(message.end_of_generation_ids),
        adds_bos=message.adds_bos,
        adds_eos=message.adds_eos,
        source=message.source,
        max_input_bytes=message.max_input_bytes,
        answer_format=message.answer_format,
        reasoning_begin_ids=list(message.reasoning_begin_ids),
        reasoning_end_ids=list(message.reasoning_end_ids),
        front_ids=list(message.front_ids),
        back_ids=list(message.back_ids),
        special_tokens=[
            SpecialToken(
                token.id,
                token.text,
                token.type == pb.TOKEN_TYPE_CONTROL,
                token.lstrip,
                token.rstrip,
                token.single_word,
                token.normalized,
            )
            for token in message.special_tokens
        ],
    )
