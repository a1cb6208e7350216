"""POST /tokenize and /detokenize, GET /tokenizer_info, in the words of vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.client import Encoding
from tandem.http.call import body_of, call_of
from tandem.http.chat import MessageFields, conversation_in
from tandem.http.errors import wrong
from tandem.http.fields import ABSENT, Json, decoder
from tandem.http.upstream import Upstream

_AT_ONCE = 4096  # tokens: a millisecond


class TokenizeFields(msgspec.Struct, kw_only=True):
    """A text, or a conversation."""

    model: str = ""
    prompt: str | None = None
    messages: list[MessageFields] | None = None
    tools: list[Json] | None = None
    chat_template_kwargs: Json = ABSENT
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool = True
    special_tokens: str | None = None
    return_token_strs: bool = False


class DetokenizeFields(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str = ""


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Info(msgspec.Struct):
    tokenizer_class: str
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    fingerprint: str


class Detokenized(msgspec.Struct):
    prompt: str


read_tokenize = decoder(TokenizeFields)
read_detokenize = decoder(DetokenizeFields)


class Tokens:
    """Both endpoints."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def tokenize(self, request: Request) -> Response:
        """Text or messages to ids."""
        call, fields = call_of(request), read_tokenize(await body_of(request))
        if (fields.prompt is None) == (fields.messages is None):
            raise wrong("prompt", "or messages must be given, and only one of them")
        if fields.model:
            await self._upstream.check_model(fields.model, call)
        options: dict[str, Any] = {"tokenizer": self._upstream.tokenizer, **call.options}
        encoding: Encoding
        if fields.messages is not None:
            conversation = conversation_in(fields)  # type: ignore[arg-type]  # its messages are not None
            encoding = await self._upstream.client.encode_chat(conversation, **options)
        else:
            assert fields.prompt is not None
            if fields.special_tokens is not None:
                options["special_tokens"] = fields.special_tokens
            options["add_special"] = fields.add_special_tokens
            encoding = await self._upstream.client.encode(fields.prompt, **options)
        texts = None
        if fields.return_token_strs:
            # What each id decodes to is known here: the service would send it for each token of the text.
            texts = await texts_of(encoding.ids, (await self._upstream.vocabulary()).pieces)
        models = await self._upstream.models()
        model = models.get(fields.model) or next(iter(models.values()), None)
        return _json(
            Tokenized(
                count=len(encoding),
                max_model_len=None if model is None else model.context_length,
                tokens=encoding.ids,
                token_strs=texts,
            )
        )

    async def info(self, request: Request) -> Response:
        """What evaluations ask for before they count tokens by themselves; the template is not told."""
        told = await self._upstream.described()
        texts = {token.id: token.text for token in told.special_tokens}
        return _json(
            Info(
                tokenizer_class=told.vocabulary_type,
                vocab_size=told.vocabulary_size,
                bos_token=_text_of(texts, told.bos_id),
                eos_token=_text_of(texts, told.eos_id),
                fingerprint=told.fingerprint,
            )
        )

    async def detokenize(self, request: Request) -> Response:
        """Ids to text, control tokens included."""
        call, fields = call_of(request), read_detokenize(await body_of(request))
        call.names["ids"] = "tokens"
        if fields.model:
            await self._upstream.check_model(fields.model, call)
        text = await self._upstream.client.decode(
            fields.tokens, tokenizer=self._upstream.tokenizer, unparse_special=True, **call.options
        )
        return _json(Detokenized(text))


async def texts_of(ids: Sequence[int], pieces: Sequence[bytes]) -> list[str]:
    """Lets others run meanwhile where there are many."""
    texts: list[str] = []
    for begin in range(0, len(ids), _AT_ONCE):
        texts += [pieces[each].decode("utf-8", "replace") for each in ids[begin : begin + _AT_ONCE]]
        await asyncio.sleep(0)
    return texts


def _text_of(texts: Mapping[int, str], token: int | None) -> str | None:
    return None if token is None else texts.get(token)


def _json(content: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
