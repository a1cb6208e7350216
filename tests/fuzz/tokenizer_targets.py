"""What is fuzzed. A target takes bytes, makes an input of them and asserts what must hold for any input."""

from __future__ import annotations

import io
import json
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import atheris
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tandem.common.errors import ServiceError
from tandem.tokenizer.arrays import ids_of
from tandem.tokenizer.chat.encoding import encode_runs
from tandem.tokenizer.chat.formats import LLAMA2, LLAMA3, template_of
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Policy, Segment, SpecialTokenInText
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.rpc.chat_validation import chat_question
from tandem.tokenizer.rpc.metrics import TokenizerMetrics
from tandem.tokenizer.rpc.stream_calls import DecodeStreamCall
from tandem.tokenizer.rpc.validation import PlainTexts, decode_inputs, encode_jobs
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabularies import rwkv
from tandem.tokenizer.vocabularies.bpe import compiled_bpe
from tandem.tokenizer.vocabulary import TokenType, VocabularyType
from tests.fuzz.loading import exercise
from tests.tokenizer_svc.gguf_writer import gguf_bytes
from tests.tokenizer_svc.test_fuzz import valid_messages
from tests.tokenizer_svc.test_gguf import BYTE, CONTROL, NORMAL, UNKNOWN, byte_pairs, scored

logging.getLogger("tandem.tokenizer").setLevel(logging.ERROR)
REPOSITORY = Path(__file__).resolve().parents[2]
REAL = (
    *("formats/llama3", "formats/llama2", "formats/t5-small"),
    *(
        f"vocabularies/ggml-vocab-{name}.gguf"
        for name in ("phi-3", "bert-bge", "starcoder", "deepseek-coder", "falcon")
    ),
    *(f"vocabularies/ggml-vocab-{name}.gguf" for name in ("rwkv-world", "spm-unigram-ja", "mpt", "roberta-bpe")),
)


def load_all(data: Path | None) -> list[Tokenizer]:
    """The demo model's tokenizer, and real ones."""
    demo = load_tokenizer(REPOSITORY / "models/demo")
    return [demo] if data is None else [demo, *(load_tokenizer(data / name) for name in REAL)]


def load_all_plain(data: Path | None) -> list[Tokenizer]:
    """The same, without what is compiled."""
    nowhere = mock.Mock(return_value=None)
    with mock.patch.object(compiled_bpe, "library", nowhere), mock.patch.object(rwkv, "library", nowhere):
        return load_all(data)


class Encode:
    """Text comes back, however it is asked for; nothing but PARSE makes control tokens; the libraries,
    and what is not compiled, agree."""

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._tokenizers = load_all(data)
        self._plain = load_all_plain(data)
        self._cached = [each.with_cache(EncodeCache(1 << 20)) for each in self._tokenizers]
        path = data / "formats/llama2/tokenizer.model" if data else REPOSITORY / "models/demo/tokenizer.model"
        self._library = SentencePieceProcessor(model_file=str(path))
        self._like_library = self._tokenizers[2 if data else 0]

    def seeds(self) -> Iterator[bytes]:
        for number in range(len(self._tokenizers)):
            for text in ("Hello, wörld!  12345\r\n\n 龘 don't I'LL", "👩‍🚀 \u2581a\u0301 \t\v <s></s>", " " * 70 + "x"):
                yield bytes([number, 0, 3]) + text.encode()

    def __call__(self, data: bytes) -> None:
        source = atheris.FuzzedDataProvider(data)
        number = source.ConsumeIntInRange(0, len(self._tokenizers) - 1)
        tokenizer, cached = self._tokenizers[number], self._cached[number]
        segments = tuple(self._segments(source, tokenizer))
        add_special = source.ConsumeBool()
        try:
            plain = tokenizer.encode_segments(segments, add_special)
        except SpecialTokenInText as error:
            assert segments[error.segment].policy is Policy.REJECT
            assert segments[error.segment].text.startswith(error.token.text, error.position)
            return
        located = tokenizer.encode_segments(segments, add_special, with_offsets=True)
        assert located.ids == plain.ids
        uncompiled = self._plain[number].encode_segments(segments, add_special, with_offsets=True)
        assert (uncompiled.ids, uncompiled.byte_offsets) == (located.ids, located.byte_offsets)
        self._check_offsets(located, "".join(segment.text for segment in segments))
        for _ in range(2):
            assert cached.encode_segments(segments, add_special).ids == plain.ids
        tokenizer.check_ids(plain.ids)
        texts = [segment.text for segment in segments]
        if tokenizer.takes_text_whole:
            together = tokenizer.encode_many(texts, add_special)
            alone = [tokenizer.encode_segments([Segment(text)], add_special).ids for text in texts]
            assert [ids.tolist() for ids in together] == alone
        for segment in segments:
            if segment.policy is Policy.PLAIN:
                self._check_plain(tokenizer, segment.text)
            if segment.policy is Policy.TEXT:
                self._check_text(tokenizer, segment.text)

    def _segments(self, source: Any, tokenizer: Tokenizer) -> Iterator[Segment]:
        specials = tokenizer.table.specials
        for _ in range(source.ConsumeIntInRange(1, 4)):
            parts: list[str] = []
            for _ in range(source.ConsumeIntInRange(1, 4)):
                parts.append(source.ConsumeUnicodeNoSurrogates(source.ConsumeIntInRange(0, 200)))
                if specials and source.ConsumeBool():
                    parts.append(specials[source.ConsumeIntInRange(0, len(specials) - 1)].text)
                if source.ConsumeIntInRange(0, 20) == 0:
                    parts.append(source.ConsumeUnicodeNoSurrogates(2) * source.ConsumeIntInRange(0, 3000))
            policy = source.PickValueInList(list(Policy))
            controls = [token.id for token in specials if tokenizer.is_control(token.id)]
            listed: frozenset[int] = frozenset()
            if policy is Policy.PARSE_LISTED and controls:
                listed = frozenset({controls[source.ConsumeIntInRange(0, len(controls) - 1)]})
            yield Segment("".join(parts), policy, listed)

    def _check_offsets(self, located: Any, text: str) -> None:
        offsets = located.byte_offsets
        assert len(offsets) == len(located.ids) == len(located.code_point_offsets)
        assert all(0 <= offset <= len(text.encode()) for offset in offsets)
        assert all(0 <= offset <= len(text) for offset in located.code_point_offsets)
        assert offsets == sorted(offsets)

    def _check_plain(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode_segments([Segment(text, Policy.PLAIN)], add_special=False).ids
        listed = {token.id for token in tokenizer.table.specials if not token.text.replace("▁", " ").isspace()}
        assert not (listed - {tokenizer.config.unk_id}).intersection(ids)

    def _check_text(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode_segments([Segment(text)], add_special=False).ids
        unknown = tokenizer.config.unk_id  # which some files call a control token
        assert not any(tokenizer.table.types[index] == TokenType.CONTROL for index in ids if index != unknown)
        parts = tokenizer.cut(text, 3)
        assert "".join(parts) == text
        if len(parts) > 1:
            assert [i for part in parts for i in tokenizer.encode(part, add_special=False)] == ids
        swallowing = any(token.lstrip or token.rstrip for token in tokenizer.table.specials)
        if tokenizer.type == VocabularyType.SPM and not swallowing:
            assert tokenizer.decode(ids) == text.replace("▁", " ")
        if tokenizer is self._tokenizers[0] or (
            tokenizer.type == VocabularyType.BPE and len(tokenizer.table) > 128_000
        ):
            assert tokenizer.decode(ids) == text.replace("▁", " ") or tokenizer.type == VocabularyType.BPE
        if tokenizer is self._like_library:
            assert ids == self._library.encode(text)


class Stream:
    """Any cut of any ids gives the text of all of them; stop strings end it where a plain search says."""

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._tokenizers = load_all(data)[:3]

    def seeds(self) -> Iterator[bytes]:
        for number, tokenizer in enumerate(self._tokenizers):
            ids = tokenizer.encode("stop, 👩‍🚀 héllo </s> stop")
            yield bytes([number]) + b"".join(index.to_bytes(4, "little") for index in ids)

    def __call__(self, data: bytes) -> None:
        source = atheris.FuzzedDataProvider(data)
        tokenizer = self._tokenizers[source.ConsumeIntInRange(0, len(self._tokenizers) - 1)]
        options = {
            "remove_special": source.ConsumeBool(),
            "unparse_special": source.ConsumeBool(),
            "graphemes": source.ConsumeBool(),
        }
        stops = [
            text
            for _ in range(source.ConsumeIntInRange(0, 3))
            if (text := source.ConsumeUnicodeNoSurrogates(source.ConsumeIntInRange(1, 5)))
        ]
        include = source.ConsumeBool()
        highest = tokenizer.vocabulary_size - 1
        ids = [source.ConsumeIntInRange(0, highest) for _ in range(source.ConsumeIntInRange(0, 60))]
        one = self._run(tokenizer, ids, [1] * len(ids), options, stops, include)
        cuts = [source.ConsumeIntInRange(0, 7) for _ in range(source.ConsumeIntInRange(0, 20))]
        other = self._run(tokenizer, ids, cuts, options, stops, include)
        assert one == other, (one, other)
        whole = tokenizer.decode(ids, options["remove_special"], options["unparse_special"])
        text, matched, consumed, trimmed = one
        if not stops:
            assert (text, matched, consumed) == (whole, None, len(ids))
        elif matched is None:
            assert text == whole
            assert not any(stop in whole for stop in stops)
        else:
            assert matched in stops
            assert 0 <= trimmed <= consumed <= len(ids)
            assert text.endswith(matched) if include else not any(stop in text for stop in stops)
            assert (
                whole.startswith(text.removesuffix(matched) if include else text) or "\ufffd" in "".join(stops) + text
            )

    def _run(
        self, tokenizer: Tokenizer, ids: list[int], cuts: list[int], options: Any, stops: list[str], include: bool
    ) -> tuple[str, str | None, int, int]:
        decoder = tokenizer.stream(stop_strings=stops, include_stop=include, **options)
        at = 0
        texts: list[str] = []
        for cut in [*cuts, len(ids)]:
            texts.append(decoder.push(ids[at : at + cut]))
            at += cut
            assert decoder.held_bytes <= 4 * 5 + 4 + 4 * 64
            if decoder.done:
                break
        else:
            texts.append(decoder.push([], end=True))
            assert decoder.done
        return "".join(texts), decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids


EXPRESSIONS = (
    *(
        "m.content",
        "m.content | trim",
        "m['content'] ~ '|'",
        "m.content | upper",
        "m.content[1:]",
        "m.content | tojson",
    ),
    *("m.content.split('\\n')[0]", "m.content | replace('a', '<s>')", "m.content.strip() + '</s>'", "m | tojson"),
    *("m.content | list | join('')", "m.content | reverse", "m.content | length", "(m.content ~ m.name) | title"),
    *("m.content | indent", "m.content | wordwrap(5)", "m.content.partition(':')[2]", "'%s' % m.content", "m.role"),
    *("m.content | escape", "m.content | urlencode", "m.content | first", "m.content * 2", "m.content.format(1)"),
)


class Chat:
    """Any conversation in any template: rendered or refused, and what users wrote never becomes a control token."""

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._tokenizers = load_all(data)[:3]
        files = sorted((data / "chat/templates").glob("*.jinja")) if data else []
        self._templates = [LLAMA2, LLAMA3, *(file.read_text() for file in files)]

    def seeds(self) -> Iterator[bytes]:
        for number in range(len(self._templates)):
            yield bytes([0, 0, 1, number, 1, 5]) + "user Hi <|eot_id|></s> \u2581 [/INST]".encode()

    def __call__(self, data: bytes) -> None:
        source = atheris.FuzzedDataProvider(data)
        tokenizer = self._tokenizers[source.ConsumeIntInRange(0, len(self._tokenizers) - 1)]
        if source.ConsumeBool():
            template = source.PickValueInList(self._templates)
        else:
            parts = [source.PickValueInList(list(EXPRESSIONS)) for _ in range(source.ConsumeIntInRange(1, 4))]
            between = source.ConsumeUnicodeNoSurrogates(8).replace("{", "(").replace("}", ")").replace("#", "")
            inner = between.join("{{ " + part + " }}" for part in parts)
            template = "{% for m in messages %}" + inner + "{% endfor %}"
        messages = [
            {
                "role": source.PickValueInList(["system", "user", "assistant", "tool"]),
                "content": source.ConsumeUnicodeNoSurrogates(source.ConsumeIntInRange(0, 60)),
                "name": source.ConsumeUnicodeNoSurrogates(source.ConsumeIntInRange(0, 8)),
            }
            for _ in range(source.ConsumeIntInRange(1, 5))
        ]
        question = {
            "template": template,
            "messages": messages,
            "tools": [],
            "add_generation_prompt": source.ConsumeBool(),
            "continue_final_message": source.ConsumeBool(),
            "arguments": {},
            "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
        }
        try:
            runs = render(question, 1 << 20)
        except RenderError:
            return
        json.dumps(runs)
        text = "".join(part for _, part in runs)
        encoding = encode_runs(tokenizer, runs, True)
        assert encode_runs(tokenizer, runs, False).ids == encoding.ids
        if tokenizer.type == VocabularyType.BPE:  # others put spaces behind control tokens
            assert tokenizer.decode(encoding.ids, unparse_special=True) == text
        written = "\0".join(part for origin, part in runs if origin == Origin.TEMPLATE)
        found = tokenizer.encode(written, add_special=False, parse_special=True)
        assert sum(map(tokenizer.is_control, encoding.ids)) <= sum(map(tokenizer.is_control, found)), (written, text)
        for (_, end), (start, _) in zip(encoding.content_ranges, encoding.content_ranges[1:], strict=False):
            assert end < start
        assert all(0 <= start < end <= len(encoding.ids) for start, end in encoding.content_ranges)


class Formats:
    """A file is a tokenizer that works, or one error that says what is wrong."""

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._data = data
        self._folder = folder / "files"
        self._folder.mkdir()

    def seeds(self) -> Iterator[bytes]:
        yield b"m" + gguf_bytes(byte_pairs())
        yield b"m" + gguf_bytes(scored())
        yield b"m" + gguf_bytes(scored(model="t5", remove_extra_whitespaces=True))
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "b", "▁c"]
        yield b"m" + gguf_bytes(
            {
                "tokenizer.ggml.model": "bert",
                "tokenizer.ggml.tokens": words,
                "tokenizer.ggml.token_type": [CONTROL, UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL],
                **{
                    f"tokenizer.ggml.{name}_token_id": i
                    for i, name in enumerate(("padding", "unknown", "cls", "seperator"))
                },
            }
        )
        yield b"m" + gguf_bytes(
            {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["<s>", "a", "\\x41\\n", "ab"], "x": [1.5, 2.5]}
        )
        model = ModelProto()
        model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
        for kind, piece in ((UNKNOWN, "<unk>"), (CONTROL, "<s>"), (CONTROL, "</s>"), (BYTE, "<0x41>"), (NORMAL, "▁a")):
            model.pieces.add(piece=piece, score=-1.0, type=kind)
        yield b"m" + model.SerializeToString()
        yield b"m" + (REPOSITORY / "models/demo/tokenizer.model").read_bytes()[:3000]
        yield b"m" + b"".join(b"%s %d\n" % (b64encode(bytes([byte])), byte) for byte in range(256))
        for kind in ("BPE", "Unigram", "WordPiece"):
            yield b"j" + self._json(kind)
        yield b"j" + self._json_of_bytes([("a", "b"), ("Ġ", "a")], tokenizers.pre_tokenizers.ByteLevel())
        yield b"j" + self._json_of_bytes(
            [("b", "a"), ("ab", "a"), ("a", "b"), ("l", "l")],  # to be ranked by pair
            tokenizers.pre_tokenizers.Sequence(
                [
                    tokenizers.pre_tokenizers.Split(tokenizers.Regex("[a[b]]+|é"), "merged_with_next"),
                    tokenizers.pre_tokenizers.Punctuation("contiguous"),
                    tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            tokenizers.normalizers.Sequence(
                [getattr(tokenizers.normalizers, step)() for step in ("NFKC", "Lowercase", "NFD", "StripAccents")]
            ),
        )
        yield b"c" + b'{"bos_token": "<s>", "added_tokens_decoder": {"1": {"content": "<s>", "special": true}}}'
        if self._data is not None:
            raw = (self._data / "vocabularies/ggml-vocab-stories260K.gguf").read_bytes()
            yield b"m" + raw

    def _json_of_bytes(self, merges: list[tuple[str, str]], cut: Any, normalizer: Any = None) -> bytes:
        """A vocabulary of all bytes and what these merges make, `aba` among it."""
        texts = [*ALPHABET, *map("".join, merges)]
        library = tokenizers.Tokenizer(tokenizers.models.BPE({text: index for index, text in enumerate(texts)}, merges))
        library.pre_tokenizer, library.decoder = cut, tokenizers.decoders.ByteLevel()
        if normalizer is not None:
            library.normalizer = normalizer
        library.add_special_tokens(["<s>"])
        return str(library.to_str()).encode()

    def _json(self, kind: str) -> bytes:
        library = tokenizers.Tokenizer(
            {
                "BPE": lambda: tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2, "Ġ": 3}, [("a", "b")]),
                "Unigram": lambda: tokenizers.models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)], 0, False),
                "WordPiece": lambda: tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),
            }[kind]()
        )
        library.add_special_tokens(["<s>"])
        library.pre_tokenizer = {
            "BPE": tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
            "Unigram": tokenizers.pre_tokenizers.Metaspace(),
            "WordPiece": tokenizers.pre_tokenizers.BertPreTokenizer(),
        }[kind]
        library.decoder = {
            "BPE": tokenizers.decoders.ByteLevel(),
            "Unigram": tokenizers.decoders.Metaspace(),
            "WordPiece": tokenizers.decoders.WordPiece(),
        }[kind]
        if kind == "WordPiece":
            library.normalizer = tokenizers.normalizers.BertNormalizer()
        return str(library.to_str()).encode()

    def __call__(self, data: bytes) -> None:
        for old in self._folder.iterdir():
            old.unlink()
        kind, content = data[:1], data[1:]
        if kind == b"j":
            (self._folder / "tokenizer.json").write_bytes(content)
        elif kind == b"c":
            (self._folder / "tokenizer_config.json").write_bytes(content)
            (self._folder / "tokenizer.model").write_bytes((REPOSITORY / "models/demo/tokenizer.model").read_bytes())
        else:
            (self._folder / "tokenizer.model").write_bytes(content)
        try:
            tokenizer = load_tokenizer(self._folder)
        except FormatError as error:
            assert str(error)
            return
        exercise(tokenizer)


class Messages:
    """Any bytes as a request: an answer or a status."""

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._tokenizer = load_tokenizer(REPOSITORY / "models/demo")
        self._settings = TokenizerSettings(tokenizer=(str(REPOSITORY / "models/demo"),), max_input_bytes=20_000)
        self._metrics = TokenizerMetrics()
        cache = EncodeCache(0)
        named = self._metrics.named("demo", cache)
        self._loaded: Any = SimpleNamespace(name="demo", tokenizer=self._tokenizer, cache=cache, metrics=named)

    def seeds(self) -> Iterator[bytes]:
        for number, message in enumerate(valid_messages()):
            yield bytes([number % 4]) + message

    def __call__(self, data: bytes) -> None:
        kinds: list[Callable[[bytes], None]] = [self._encode, self._decode, self._chat, self._stream]
        with suppress(DecodeError, ServiceError):
            kinds[data[0] % len(kinds) if data else 0](data[1:])

    def _encode(self, data: bytes) -> None:
        request = pb.BatchEncodeRequest.FromString(data)
        plain = PlainTexts(self._settings.max_input_bytes)
        is_plain = plain.take(request.inputs)
        jobs = encode_jobs(request.inputs, self._tokenizer, self._settings)
        if is_plain:
            assert [job.segments for job in jobs] == [(Segment(text),) for text in plain.texts]
            assert [(job.add_special, job.size) for job in jobs] == [(plain.add_special, size) for size in plain.sizes]
        for job in jobs:
            with suppress(SpecialTokenInText):
                found = self._tokenizer.encode_segments(job.segments, job.add_special, request.include_offsets)
                if job.max_tokens is not None:
                    found.truncate(job.max_tokens, job.cut_left)
                pb.Encoding(ids=found.ids, pieces=self._tokenizer.pieces(found.ids))

    def _decode(self, data: bytes) -> None:
        request = pb.BatchDecodeRequest.FromString(data)
        options = request.options
        ids, edges = decode_inputs(request.inputs, self._tokenizer, self._settings)
        wanted = options.remove_special, options.unparse_special, options.clean_spaces
        fields = self._tokenizer.decode_fields(ids, edges, *wanted)
        together = pb.BatchDecodeResponse.FromString(b"".join(fields)).decoded
        for found, message in zip(together, request.inputs, strict=True):
            raw = self._tokenizer.decode_bytes(list(message.ids), *wanted)
            assert len(raw) <= self._tokenizer.decoded_size(ids_of(message.ids))
            assert (found.text, found.raw or found.text.encode()) == (raw.decode("utf-8", "replace"), raw)

    def _chat(self, data: bytes) -> None:
        request = pb.EncodeChatRequest.FromString(data)
        json.dumps(chat_question(request, self._tokenizer, template_of(self._tokenizer), self._settings))

    def _stream(self, data: bytes) -> None:
        """Requests one after the other, each with its length in front."""

        async def find(name: str) -> Any:
            return self._loaded

        call = DecodeStreamCall(find, self._settings, self._metrics)
        source = io.BytesIO(data)
        try:
            while head := source.read(1):
                handling = call.handle(pb.DecodeStreamRequest.FromString(source.read(head[0])))
                with suppress(StopIteration):  # it waits for nothing but its turn
                    while True:
                        handling.send(None)
        finally:
            call.close()


TARGETS: dict[str, Any] = {
    "encode": Encode,
    "stream": Stream,
    "chat": Chat,
    "formats": Formats,
    "messages": Messages,
}
