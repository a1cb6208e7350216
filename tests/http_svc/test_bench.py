"""`tandem bench` on the demo model: through the SDK and through the HTTP door, from the shell."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_cli import TANDEM
from tests.http_svc.conftest import Stack

LOAD = ("--prompt-tokens=40", "--output-tokens=6", "--prefixes=1", "--prefix-tokens=100", "--conversations=4")


def bench(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    addresses = {"TANDEM_TOKENIZER_ADDRESS": stack.tokenizer, "TANDEM_WORKER_ADDRESS": stack.worker}
    environment = {**os.environ, **addresses, "COLUMNS": "200"}
    return subprocess.run(
        [*TANDEM, "bench", *arguments], env=environment, capture_output=True, encoding="utf-8", timeout=300
    )


@pytest.mark.slow
def test_the_same_load_costs_the_same_tokens_by_either_way_and_turns_find_the_one_before(stack: Stack, tmp_path: Path):
    sdk, door, picture = tmp_path / "sdk.json", tmp_path / "door.json", tmp_path / "door.png"
    # One talk at a time, so that every prefix is cached before it is asked for again.
    done = bench(stack, *LOAD, "--turns=2", "--slo=e2e=1000", "--json", str(sdk))
    assert done.returncode == 0, done.stderr
    arguments = (*LOAD, "--turns=2", "--base-url", stack.base_url, "--json", str(door), "--plot", str(picture))
    done = bench(stack, *arguments, "--compare", str(sdk), "--slo=ttft=1e-9")
    assert done.returncode == 0, done.stderr
    assert "8 of 8 answered" in done.stdout and "before" in done.stdout and "within ttft 1e-09 s, %" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")

    kept: dict[Path, dict[str, Any]] = {path: json.loads(path.read_text()) for path in (sdk, door)}
    for result in kept.values():
        rows = result["requests"]  # in order, one at a time
        assert len(rows) == 8
        assert all(120 < row["prompt_tokens"] < 170 for row in rows[::2]), "140 tokens, as nearly as words allow"
        assert all(row["output_tokens"] == 6 and row["ttft"] > 0 for row in rows)
        assert all(len(row["gaps"]) < 6 for row in rows), "tokens that arrive together have no gap"
        assert all(row["cached_tokens"] >= 100 for row in rows[1::2]), "what the turn before left"
    prompts = [sorted(row["prompt_tokens"] for row in result["requests"]) for result in kept.values()]
    assert prompts[0] == prompts[1], "the same seed asks the same"
    assert kept[sdk]["summary"]["good_share"] == 1 and kept[door]["summary"]["good_share"] == 0


@pytest.mark.slow
def test_it_chats_by_an_open_load_of_a_file_and_fails_where_requests_do(stack: Stack, tmp_path: Path):
    prompts, result = tmp_path / "prompts.jsonl", tmp_path / "run.json"
    prompts.write_text('{"prompt": ["Who art thou?", "And whence?"], "max_tokens": 4}\n{"prompt": "Speak."}\n')
    done = bench(stack, "--chat", "--rate=100", f"--prompts={prompts}", "--output-tokens=3", f"--json={result}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["requests"]
    assert sorted(row["output_tokens"] for row in rows) == [3, 4, 4]
    done = bench(stack, "--conversations=2", "--model=nobody", f"--prompts={prompts}")
    assert done.returncode == 1 and "0 of 2 answered; 2 NOT_FOUND" in done.stdout
