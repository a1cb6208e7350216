"""The service as a process: its command line, and starts that cannot succeed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from pydantic import ValidationError

from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc


def run(repository: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem.tokenizer", *flags]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)


def test_it_serves_and_stops_on_sigterm(repository: Path, shared_data: Path, tmp_path: Path) -> None:
    address_file = tmp_path / "address.json"
    model = shared_data / "models/stories260K/hf/tokenizer.model"
    command = [sys.executable, "-m", "tandem.tokenizer", f"--tokenizer={model}", f"--address-file={address_file}"]
    with subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        address = json.loads(address_file.read_text())["address"]
        with grpc.insecure_channel(address) as channel:
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            answer = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=60)
        assert answer.tokenizer.name == "hf"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(timeout=60) == 0


def test_a_broken_file_ends_the_start_with_one_clear_line(repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.model"
    broken.write_bytes(b"\x0a\x05hello")
    finished = run(repository, f"--tokenizer=mine={broken}")
    assert finished.returncode == 1
    complaints = [line for line in finished.stderr.splitlines() if "cannot start" in line]
    assert len(complaints) == 1
    assert "'mine'" in complaints[0]
    assert str(broken) in complaints[0]
    assert "Traceback" not in finished.stderr


def test_a_start_without_a_tokenizer_says_which_flag_is_missing(repository: Path) -> None:
    finished = run(repository)
    assert finished.returncode == 1
    assert "--tokenizer" in finished.stderr


def test_names_come_from_flags_folders_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(b"x")
    (folder / "other=name.bin").write_bytes(b"x")
    given = TokenizerSettings(
        tokenizer=("a/b.c=/some/path=x", str(folder), f"file={folder}/tokenizer.model", f"{folder}/vocabulary.gguf")
    )
    assert list(given.tokenizers()) == ["a/b.c", "llama", "file", "vocabulary"]
    assert given.tokenizers()["a/b.c"] == Path("/some/path=x")
    assert list(TokenizerSettings(tokenizer=(f"{folder}/tokenizer.model",)).tokenizers()) == ["llama"]


@pytest.mark.parametrize("entries", [("a=/x", "a=/y"), ("/x/llama", "/y/llama"), ("/",)])
def test_bad_names_are_refused(entries: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="name"):
        TokenizerSettings(tokenizer=entries)
