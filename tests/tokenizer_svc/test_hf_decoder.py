"""A `tokenizer.json`'s own decoder gives what the `tokenizers` library gives, in streams too, or is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tests.tokenizer_svc.test_hf_json import KINDS

LLAMA2 = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS: dict[str, tuple[str, Any]] = {
    "byte level": ("gpt2", decoders.ByteLevel()),
    "byte level in a sequence": ("llama3", decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])),
    "BERT": ("bert", decoders.WordPiece()),
    "BERT, not cleaned": ("bert", decoders.WordPiece(cleanup=False)),
    "BERT with another prefix": ("bert", decoders.WordPiece(prefix="#")),
    "Llama 2": ("llama2", decoders.Sequence(LLAMA2)),
    "Gemma": ("llama2", decoders.Sequence(LLAMA2[:3])),
    "metaspace": ("llama2", decoders.Metaspace()),
    "metaspace without a prefix": ("llama2", decoders.Metaspace(prepend_scheme="never")),
    "strip of each token": ("llama2", decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])),
    "replace alone": ("llama2", decoders.Replace("▁", "__")),
    "byte level behind others": ("gpt2", decoders.Sequence([decoders.Replace("Ġ", "_"), decoders.ByteLevel()])),
}


def trained(kind: str, decoder: Any, lines: list[str], folder: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    library, trainer = KINDS[kind]()
    library.train_from_iterator(lines, trainer)
    library.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("<think>", "õx", "   ")])
    library.add_special_tokens(["<|x y|>"])
    if decoder is not None:
        library.decoder = decoder
    content = json.loads(library.to_str())
    if kind == "llama2":  # the trainer can only make control tokens of bytes
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[str]:
    return (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:400]


def id_lists(tokenizer: Tokenizer, lines: list[str], draw: random.Random, count: int) -> list[list[int]]:
    """Encodings, parts of them, and any ids; byte tokens make valid UTF-8 or stand alone."""
    types = tokenizer.table.types
    plain = [index for index in range(len(types)) if types[index] != 6]
    specials = [token.id for token in tokenizer.table.specials]
    found: list[list[int]] = []
    while len(found) < count:
        ids = tokenizer.encode(draw.choice(lines) + draw.choice(["", " é龘 don't", " ' . !", "  x"]))
        start = 0 if draw.random() < 0.5 else draw.randrange(len(ids) + 1)
        ids = [index for index in ids[start:] if types[index] != 6] if start else ids
        if draw.random() < 0.5:
            ids = [draw.choice(specials), *ids, draw.choice(specials)]
        if draw.random() < 0.3:
            ids = [draw.choice(plain) for _ in range(draw.randrange(12))]
        found.append(ids)
    return found


@pytest.mark.parametrize("name", DECODERS)
def test_decodes_equal_the_library(tmp_path: Path, lines: list[str], name: str) -> None:
    kind, decoder = DECODERS[name]
    ours, library = trained(kind, decoder, lines, tmp_path)
    draw = random.Random(name)
    for ids in id_lists(ours, lines, draw, 1200):
        for skip in (True, False):
            expected = library.decode(ids, skip_special_tokens=skip)
            if "�" in expected:
                continue  # the library takes a run of bytes as a whole; how much of it is valid shows here
            assert ours.decode(ids, unparse_special=not skip) == expected, ids
            stream = ours.stream(unparse_special=not skip)
            parts: list[str] = []
            at = 0
            while at < len(ids):
                size = draw.randrange(1, 4)
                parts.append(stream.push(ids[at : at + size]))
                at += size
            assert "".join(parts) + stream.push([], end=True) == expected, ids


@pytest.mark.parametrize("name", ["BERT", "Llama 2"])
def test_what_follows_shown_context_is_not_the_first(tmp_path: Path, lines: list[str], name: str) -> None:
    kind, decoder = DECODERS[name]
    ours, library = trained(kind, decoder, lines, tmp_path)
    draw = random.Random(0)
    for ids in id_lists(ours, lines, draw, 200):
        if not ids or "�" in library.decode(ids):
            continue
        cut = draw.randrange(len(ids))
        try:
            before = ours.decode(ids[:cut])
        except ValueError:
            continue
        if "�" in before:
            continue
        assert before + ours.stream(context_ids=ids[:cut]).push(ids[cut:], end=True) == library.decode(ids)


@pytest.mark.parametrize("remove_special", [True, False])
@pytest.mark.parametrize("unparse_special", [True, False])
def test_any_chunking_gives_the_text_of_the_whole(
    tmp_path: Path, lines: list[str], remove_special: bool, unparse_special: bool
) -> None:
    ours, _ = trained("bert", decoders.WordPiece(), lines, tmp_path)
    draw = random.Random(1)
    options = {"remove_special": remove_special, "unparse_special": unparse_special}
    for ids in id_lists(ours, lines, draw, 300):
        whole = ours.decode(ids, **options)
        for stops in ([], ["never in the text"]):
            stream = ours.stream(**options, stop_strings=stops)
            texts = [stream.push([index]) for index in ids]
            assert "".join(texts) + stream.push([], end=True) == whole
        fields = ours.decode_fields(np.array(ids, "uint32"), np.array([0, len(ids)]), **options)
        assert whole.encode() in b"".join(fields)


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (decoders.BPEDecoder(), "the decoder BPEDecoder"),
        (decoders.CTC(), "the decoder CTC"),
        (decoders.Replace(tokenizers.Regex("a+"), ""), "the decoder Replace"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]), "the decoder Replace"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "the decoder Strip"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), "the decoder Metaspace"),
    ],
)
def test_decoders_that_look_around_are_refused_by_name(
    tmp_path: Path, lines: list[str], decoder: Any, words: str
) -> None:
    with pytest.raises(FormatError, match=words):
        trained("llama2", decoder, lines[:50], tmp_path)


def test_the_decoder_is_a_part_of_the_fingerprint(tmp_path: Path, lines: list[str]) -> None:
    prints = set()
    for number, decoder in enumerate((None, decoders.WordPiece(), decoders.WordPiece(cleanup=False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        prints.add(trained("bert", decoder, lines[:100], folder)[0].fingerprint)
    assert len(prints) == 3
