"""Files are recognised by content, folders are taken, and what is broken is said in one line."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.tiktoken_ranks import _version_of, llama3_special_texts
from tandem.tokenizer.vocabulary import TokenType, VocabularyType


@pytest.fixture(scope="module")
def ranks(shared_data: Path) -> bytes:
    return (shared_data / "formats/llama3/tokenizer.model").read_bytes()


@pytest.fixture(scope="module")
def small_model(shared_data: Path) -> bytes:
    return (shared_data / "models/stories260K/meta/tokenizer.model").read_bytes()


def test_content_decides_and_not_the_name(tmp_path: Path, ranks: bytes, small_model: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(small_model)
    (tmp_path / "b.json").write_bytes(ranks)
    assert load_tokenizer(tmp_path / "a.bin").type == VocabularyType.SPM
    assert load_tokenizer(str(tmp_path / "b.json")).type == VocabularyType.BPE


@pytest.mark.parametrize("folder", ["models/stories260K/meta", "models/stories260K/hf"])
def test_a_model_folder_is_taken(shared_data: Path, folder: str) -> None:
    assert load_tokenizer(shared_data / folder).vocabulary_size == 512


def test_the_same_tokenizer_has_the_same_fingerprint_wherever_it_lies(shared_data: Path) -> None:
    folders = ("models/stories260K/meta", "models/stories260K/hf")
    assert len({load_tokenizer(shared_data / folder).fingerprint for folder in folders}) == 1


def test_llama3_special_tokens_by_version(tmp_path: Path, ranks: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(ranks)
    old = load_tokenizer(tmp_path, llama3_version="3.0")
    new = load_tokenizer(tmp_path, llama3_version="3.1")
    assert old.vocabulary_size == new.vocabulary_size == 128_256
    assert old.encode("<|eom_id|>", False, True) != [128_008]
    assert new.encode("<|eom_id|><|python_tag|>", False, True) == [128_008, 128_010]
    assert new.encode("<|reserved_special_token_2|>", False, True) == [128_005]
    assert old.encode("<|reserved_special_token_2|>", False, True) == [128_004]
    assert sorted(old.config.end_of_generation_ids) == [128_001, 128_009]
    assert sorted(new.config.end_of_generation_ids) == [128_001, 128_008, 128_009]
    assert (new.config.bos_id, new.config.eos_id, new.config.pad_id) == (128_000, 128_001, 128_004)
    assert old.fingerprint != new.fingerprint


def test_the_version_of_a_folder_shows_in_its_params(tmp_path: Path) -> None:
    assert _version_of(tmp_path) == "3.1"
    (tmp_path / "params.json").write_text('{"dim": 1}')
    assert _version_of(tmp_path) == "3.0"
    (tmp_path / "params.json").write_text('{"use_scaled_rope": true}')
    assert _version_of(tmp_path) == "3.1"


def test_metas_tables_have_256_tokens_each_once() -> None:
    for version in ("3.0", "3.1"):
        texts = llama3_special_texts(version)
        assert len(set(texts)) == len(texts) == 256
        assert texts[9] == "<|eot_id|>"
    assert llama3_special_texts("3.0")[-1] == "<|reserved_special_token_250|>"
    assert llama3_special_texts("3.1")[-1] == "<|reserved_special_token_247|>"


def test_metas_table_of_3_0_equals_the_tokenizer_config_of_that_model(shared_data: Path) -> None:
    config = json.loads((shared_data / "formats/llama3/tokenizer_config.json").read_text())
    listed = [config["added_tokens_decoder"][str(128_000 + place)]["content"] for place in range(256)]
    assert llama3_special_texts("3.0") == listed


def write_config(folder: Path, **config: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def added(text: str, **flags: bool) -> dict[str, object]:
    return {"content": text, "lstrip": False, "rstrip": False, "special": True} | flags


def test_a_tokenizer_config_adds_tokens_and_decides_what_is_added(tmp_path: Path, small_model: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(small_model)
    write_config(
        tmp_path,
        added_tokens_decoder={
            "1": added("<s>"),
            "512": added("<|x|>", rstrip=True),
            "514": added("plain", special=False),
            "515": added("<|im_end|>", special=False),
        },
        add_bos_token=False,
        add_eos_token=True,
        eos_token={"content": "<|x|>"},
        chat_template=[{"name": "default", "template": "T"}, {"name": "tools", "template": "U"}],
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocabulary_size == 516
    assert [tokenizer.table.types[index] for index in range(512, 516)] == [
        TokenType.CONTROL,
        TokenType.UNUSED,
        TokenType.USER_DEFINED,
        TokenType.CONTROL,  # the text of a token that ends answers is never ordinary text
    ]
    assert tokenizer.encode("a")[-1] == 512
    assert tokenizer.encode("a")[0] != 1
    assert tokenizer.encode("plain", add_special=False) == [514]
    stripped = tokenizer.encode("<|x|>  \na", False, True)
    assert stripped == [512, *tokenizer.encode("a", False)]
    assert tokenizer.config.end_of_generation_ids == {2, 512, 515}
    assert tokenizer.config.chat_template == "T"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": ["odd"]}, {"template": "no name"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).config.chat_template is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "U"}))
    assert load_tokenizer(tmp_path).config.chat_template == "U"
    (tmp_path / "chat_template.jinja").write_text("V")
    assert load_tokenizer(tmp_path).config.chat_template == "V"


def model_with(data: bytes, change: Callable[[ModelProto], None]) -> bytes:
    model = ModelProto()
    model.ParseFromString(data)
    change(model)
    return bytes(model.SerializeToString())


def test_broken_sentencepiece_models(tmp_path: Path, small_model: bytes) -> None:
    def set_type(model: ModelProto, index: int, kind: int) -> None:
        model.pieces[index].type = kind

    cases = {
        "not a tokenizer of a known format": small_model[: len(small_model) // 2],
        "is empty": b"",
        "ids 300 and 301 have the same piece": model_with(
            small_model, lambda model: setattr(model.pieces[301], "piece", model.pieces[300].piece)
        ),
        "the piece of id 0 is not valid UTF-8": small_model.replace(b"<unk>", b"<\xffnk>", 1),
        "255 byte pieces": model_with(small_model, lambda model: set_type(model, 10, TokenType.NORMAL)),
        "0 pieces of type UNKNOWN": model_with(small_model, lambda model: set_type(model, 0, TokenType.CONTROL)),
        "id 400 is a byte": model_with(small_model, lambda model: set_type(model, 400, TokenType.BYTE)),
        "type WORD": model_with(small_model, lambda model: setattr(model.trainer_spec, "model_type", 3)),
    }
    for words, data in cases.items():
        expect_error(tmp_path / "tokenizer.model", data, words)


def test_broken_rank_files(tmp_path: Path, ranks: bytes) -> None:
    lines = ranks.splitlines(keepends=True)
    cases = {
        "has 1000 ranks": b"".join(lines[:1000]),
        "line 128000 is not `base64 rank`": ranks[: ranks.rindex(b" ")],
        "has 127999 ranks": b"".join(lines[:-1]),
        "line 8 has rank 9, expected 7": b"".join([*lines[:7], b"AAAA 9\n", *lines[8:]]),
        "line 8 is not valid base64": b"".join([*lines[:7], b"A&A= 7\n", *lines[8:]]),
        "twice": b"".join([*lines[:7], lines[3].split()[0] + b" 7\n", *lines[8:]]),
    }
    for words, data in cases.items():
        expect_error(tmp_path / "tokenizer.model", data, words)


def test_broken_neighbours_of_a_rank_file(tmp_path: Path, ranks: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(ranks)
    token = base64.b64decode(ranks.split(b" ", 1)[0]).decode()
    cases: dict[str, str] = {
        "is not valid JSON": "{",
        "is not a JSON object": "[]",
        "holds a lone surrogate": json.dumps({"added_tokens_decoder": {"128000": added("x\ud800")}}),
        "neither a text nor a list": '{"chat_template": [{"name": "default", "template": 5}]}',
        "added_tokens_decoder is not an object": '{"added_tokens_decoder": 5}',
        "which is not an id": '{"added_tokens_decoder": {"x": {"content": "a"}}}',
        "has no text": '{"added_tokens_decoder": {"128000": {}}}',
        "have the same id": json.dumps({"added_tokens_decoder": {"0": added(token + "x")}}),
        "the same text": json.dumps({"added_tokens_decoder": {"128000": added("x"), "128001": added("x")}}),
        "out of any range": json.dumps({"added_tokens_decoder": {"900000000": added("x")}}),
        "which is no special token": json.dumps(
            {"added_tokens_decoder": {"128000": added("x")}, "bos_token": "<nothing>"}
        ),
        "expected true or false": '{"add_bos_token": "yes"}',
        "bos_token is not a text": '{"bos_token": 5}',
        "chat_template is neither": '{"chat_template": 5}',
    }
    for words, config in cases.items():
        (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(FormatError, match=words) as caught:
            load_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)


def test_places_without_a_tokenizer(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="no tokenizer file"):
        load_tokenizer(tmp_path)
    for name in ("config.json", "model.safetensors"):
        copy = tmp_path / name
        shutil.copyfile(shared_data / "models/stories260K/hf" / name, copy)
        with pytest.raises(FormatError):
            load_tokenizer(copy)


def expect_error(path: Path, data: bytes, words: str) -> None:
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        load_tokenizer(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
