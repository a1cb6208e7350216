"""`tandem inspect` and `tandem convert` as a user calls them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tandem.client.cli.app import make_app


def tandem(*arguments: str | Path) -> Result:
    return CliRunner().invoke(make_app(), [str(argument) for argument in arguments])


def test_inspect_tells_what_a_checkpoint_is(repository: Path) -> None:
    demo = repository / "models" / "demo"
    shown = tandem("inspect", demo)
    assert shown.exit_code == 0
    assert "(hugging_face, llama)" in shown.stdout
    assert "int4" in shown.stdout
    report = json.loads(tandem("inspect", demo, "--json").stdout)
    stored = (demo / "model.safetensors").stat().st_size
    assert stored - 10_000 < report["stored_bytes"] < stored
    assert report["weight_bytes"]["bfloat16"] == 2 * report["parameters"] == report["stored_bytes"]
    heads = report["layers"] * report["kv_heads"] * report["head_dim"]
    assert report["kv_bytes_per_token"]["float32"] == 2 * 4 * heads
    assert report["machine"][0]["fits"]["bfloat16"] > report["context_length"]


def test_convert_writes_a_model_and_refuses_to_overwrite_it(repository: Path, tmp_path: Path) -> None:
    demo, target = repository / "models" / "demo", tmp_path / "demo.gguf"
    done = tandem("convert", demo, target, "--to", "gguf")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{target}: 6.3 MiB")
    report = json.loads(tandem("inspect", target, "--json").stdout)
    assert (report["format"], report["tokenizer"], report["eos_ids"]) == ("gguf", "demo.gguf", [2])
    again = tandem("convert", demo, target, "--to", "gguf")
    assert again.exit_code == 1
    assert again.stderr.strip() == f"error: {target}: is there already; name something new"
    assert [file.name for file in tmp_path.iterdir()] == ["demo.gguf"]


def test_a_model_that_is_not_there_is_one_clear_line_and_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program is started"))
    for command in (("inspect", tmp_path / "no"), ("convert", tmp_path / "no", tmp_path / "new", "--to", "meta")):
        result = tandem(*command)
        assert result.exit_code == 1
        assert result.stderr.strip() == f"error: {tmp_path / 'no'}: no such file or folder"
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_is_not_there_is_one_clear_line(repository: Path, tmp_path: Path) -> None:
    model, adapter = repository / "models" / "demo", tmp_path / "no"
    done = tandem("convert", model, tmp_path / "new", "--to", "hugging-face", "--adapter", adapter)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error: {adapter}/adapter_config.json: no such file\n"
    assert not (tmp_path / "new").exists()


def test_without_the_workers_code_both_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in (("inspect", tmp_path), ("convert", tmp_path, tmp_path / "new", "--to", "meta")):
        result = tandem(*command)
        assert result.exit_code == 1
        assert "pip install 'tandem-llm[worker]'" in result.stderr
