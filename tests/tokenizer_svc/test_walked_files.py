"""Any one key of a valid file taken away, set to null or to another type: it loads, or the error names the key."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import decoders, processors

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tests.tokenizer_svc.gguf_writer import write_gguf
from tests.tokenizer_svc.test_hf_json import KINDS

VALUES: list[Any] = [None, True, 5, -1, 1.5, "x", [], [5], {}, {"a": 1}, [None], 1 << 40, ["a", "b"], [["a", "b"]]]
GONE = object()
_PYTHON = re.compile(
    r"KeyError|TypeError|AttributeError|IndexError|INTERNAL|object has no|not subscriptable|unhashable"
)
Path_ = tuple[str | int, ...]

UNIGRAM: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<unk>", "special": True, "normalized": False}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "post_processor": {"type": "TemplateProcessing", "single": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<unk>", "type_id": 0}}],
        "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
              "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -1.0], ["▁a", -1.5]]},
}  # fmt: skip


def trained(kind: str) -> dict[str, Any]:
    library, trainer = KINDS[kind]()
    library.train_from_iterator(["ab ab abc don't 12"], trainer)
    if kind == "bert":
        library.decoder = decoders.WordPiece()
        library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    elif kind == "llama2":
        library.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    content: dict[str, Any] = json.loads(library.to_str())
    # The trainer can only make control tokens of bytes.
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    return content


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "unigram": lambda: UNIGRAM,
    "gpt2": lambda: trained("gpt2"),
    "digits": lambda: trained("digits"),
    "llama3": lambda: trained("llama3"),
    "llama2": lambda: trained("llama2"),
    "bert": lambda: trained("bert"),
}


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every key and index, but of long lists and objects the first few."""
    entries = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in entries[: 3 if len(entries) > 30 else None]:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(content: dict[str, Any], place: Path_, value: Any) -> dict[str, Any]:
    other = copy.deepcopy(content)
    parent: Any = other
    for key in place[:-1]:
        parent = parent[key]
    if value is GONE:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return other


def check(load: Callable[[], object], place: Path_, what: object, named: bool = True) -> None:
    """`named`: an error must name the key; another value of the right type may be wrong together with others."""
    try:
        load()
    except FormatError as error:
        message = str(error).replace("pre-tokenizer", "pre_tokenizer").replace("post-processor", "post_processor")
        assert not _PYTHON.search(message), (place, what, message)
        names = [str(key) for key in place if isinstance(key, str)]
        assert not named or any(name in message for name in names), (place, what, message)
        assert "\n" not in message


@pytest.mark.parametrize("name", FILES)
def test_a_tokenizer_json(tmp_path: Path, name: str) -> None:
    content = FILES[name]()
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    load_tokenizer(file)
    for place in places(content):
        was: Any = content
        for key in place:
            was = was[key]
        for value in (GONE, *VALUES):
            file.write_text(json.dumps(changed(content, place, value)))
            check(lambda: load_tokenizer(file), place, value, type(value) is not type(was))


def test_a_tokenizer_config(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes((shared_data / "formats/sentencepiece/test_model.model").read_bytes())
    token = {
        "content": "<x>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    content = {
        "added_tokens_decoder": {"1000": token},
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": [{"name": "default", "template": "x"}],
    }
    file = tmp_path / "tokenizer_config.json"
    for place in places(content):
        for value in (GONE, *VALUES):
            file.write_text(json.dumps(changed(content, place, value)))
            check(lambda: load_tokenizer(tmp_path), place, value)


GGUF: dict[str, dict[str, Any]] = {
    "gpt2": {"tokens": ["a", "b", "ab", "<e>"], "token_type": [1, 1, 1, 3], "merges": ["a b"], "pre": "default"},
    "llama": {"tokens": ["<unk>", "<s>", "</s>", "a"], "token_type": [2, 3, 3, 1], "scores": [0.0] * 4},
    "t5": {"tokens": ["<pad>", "</s>", "<unk>", "a"], "token_type": [3, 3, 2, 1], "scores": [0.0] * 4},
    "bert": {"tokens": ["[PAD]", "[UNK]", "▁a", "b"], "token_type": [3, 3, 1, 1], "unknown_token_id": 1},
    "rwkv": {"tokens": ["<s>", "a", "b"], "token_type": [3, 1, 1]},
}


@pytest.mark.parametrize("model", GGUF)
def test_the_metadata_of_a_gguf_file(tmp_path: Path, model: str) -> None:
    fields = {"model": model, **GGUF[model], "bos_token_id": 1, "add_bos_token": False, "eos_token_id": 2}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in fields.items()} | {"tokenizer.chat_template": "x"}
    file = tmp_path / "x.gguf"
    load_tokenizer(write_gguf(file, metadata))
    for name in metadata:
        for value in (GONE, True, 5, 1.5, "x", [], [5], ["x"], [1.5], ["\0"] * 4, [7] * 4):
            write_gguf(file, changed(metadata, (name,), value))
            check(lambda: load_tokenizer(file), (name.rpartition(".")[2],), value)


@pytest.mark.parametrize("model_type", ["BPE", "UNIGRAM"])
def test_a_null_character_in_a_piece_is_named(tmp_path: Path, model_type: str) -> None:
    model = ModelProto()
    model.trainer_spec.model_type = getattr(model.trainer_spec, model_type)
    for piece, kind in (("<unk>", 2), ("a", 1), ("b\0", 1)):
        model.pieces.add(piece=piece, score=0.0, type=kind)
    file = tmp_path / "tokenizer.model"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match=r"id 2 has the piece 'b\\x00': a null character"):
        load_tokenizer(file)


def test_ids_far_above_the_vocabulary_are_named_and_take_no_memory(tmp_path: Path, shared_data: Path) -> None:
    file = tmp_path / "tokenizer.json"
    pre = '"pre_tokenizer": {"type": "ByteLevel"}'
    for index in (70_000, 4_194_303, 4_194_304, 1 << 60):
        file.write_text(f'{{{pre}, "model": {{"type": "BPE", "vocab": {{"a": {index}}}, "merges": []}}}}')
        with pytest.raises(FormatError, match=f"model.vocab or added_tokens has the id {index}"):
            load_tokenizer(file)
    file.unlink()
    (tmp_path / "tokenizer.model").write_bytes((shared_data / "formats/sentencepiece/test_model.model").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"added_tokens_decoder": {"4194303": {"content": "<x>"}}}')
    with pytest.raises(FormatError, match="added_tokens_decoder beside it has the id 4194303"):
        load_tokenizer(tmp_path)
    config.write_text('{"added_tokens_decoder": {"1500": {"content": "<x>"}}}')
    assert load_tokenizer(tmp_path).vocabulary_size == 1501
