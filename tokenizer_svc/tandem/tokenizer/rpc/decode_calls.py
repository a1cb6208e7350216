"""Serves Decode and BatchDecode: few ids at once, more of them in a thread; the answers are bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tandem.common.request_log import tell
from tandem.tokenizer.rpc import validation
from tandem.tokenizer.rpc.encode_calls import EncodeCalls
from tandem.tokenizer.rpc.loaded import Loaded
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_INLINE_IDS = 4096  # that are decoded without a thread


class DecodeCalls:
    """Serves the calls of one event loop."""

    def __init__(self, settings: TokenizerSettings, encoding: EncodeCalls) -> None:
        self._settings = settings
        self._in_pool = encoding.in_pool

    async def decode(self, loaded: Loaded, request: pb.DecodeRequest) -> bytes:
        """Returns a DecodeResponse. Raises ServiceError."""
        read = partial(validation.decode_input, request, loaded.tokenizer, self._settings)
        rest = pb.DecodeResponse(fingerprint=loaded.tokenizer.fingerprint)
        return await self._answer(loaded, [request.input], read, request.options, rest)

    async def decode_batch(self, loaded: Loaded, request: pb.BatchDecodeRequest) -> bytes:
        """Returns a BatchDecodeResponse. Raises ServiceError."""
        read = partial(validation.decode_inputs, request.inputs, loaded.tokenizer, self._settings)
        rest = pb.BatchDecodeResponse(fingerprint=loaded.tokenizer.fingerprint)
        return await self._answer(loaded, request.inputs, read, request.options, rest)

    async def _answer(
        self,
        loaded: Loaded,
        inputs: Sequence[pb.DecodeInput],
        read: Callable[[], validation.IdLists],
        options: pb.DecodeOptions,
        rest: pb.DecodeResponse | pb.BatchDecodeResponse,
    ) -> bytes:
        def work() -> bytes:
            ids, edges = read()
            tokenizer = loaded.tokenizer
            size = tokenizer.decoded_size(ids)
            if size > self._settings.max_output_bytes:
                raise validation.too_much_output("text", size, self._settings)
            loaded.metrics.decoded_bytes.inc(size)
            loaded.metrics.decoded_tokens.inc(len(ids))
            fields = tokenizer.decode_fields(
                ids, edges, options.remove_special, options.unparse_special, options.clean_spaces
            )
            return b"".join([*fields, rest.SerializeToString()])

        total = sum(len(each.ids) for each in inputs)
        tell(tokenizer=loaded.name, tokens=total)
        if _INLINE_IDS < total <= self._settings.max_decode_ids:  # more than may be are not looked at
            [answer] = await self._in_pool([work])
            return answer
        return work()
