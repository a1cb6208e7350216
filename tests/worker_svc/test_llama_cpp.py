"""llama.cpp reads what we write and continues as we do; only where llama-cpp-python is installed.

`TANDEM_LLAMA_CPP_PYTHON` may name the interpreter of another environment that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.worker.convert.run import convert

PYTHON = os.environ.get("TANDEM_LLAMA_CPP_PYTHON", sys.executable)
PROGRAM = """
import json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=1, verbose=False)
answers = []
for ids, count in json.load(sys.stdin):
    model.reset()
    answer = []
    for token in model.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
        answer.append(token)
        if len(answer) == count:
            break
    answers.append(answer)
print(json.dumps(answers))
"""


def continuations(path: Path, prompts: list[tuple[list[int], int]]) -> list[list[int]]:
    """llama.cpp's greedy continuations of prompts, each of so many tokens."""
    result = subprocess.run(
        [PYTHON, "-c", PROGRAM, str(path)], input=json.dumps(prompts), capture_output=True, text=True, check=True
    )
    answers: list[list[int]] = json.loads(result.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("source", ["meta", "meta-2-shards", "hf", "gguf"])
def test_llama_cpp_continues_a_real_model_as_we_do(source: str, tmp_path: Path, shared_data: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True, check=False).returncode:
        pytest.skip(f"llama-cpp-python is not installed for {PYTHON}")
    folder = shared_data / "models" / "stories260K"
    convert(folder / source, tmp_path / "model.gguf", "gguf", "float32", lambda done, total: None)
    cases = json.loads((folder / "expected_greedy.json").read_text())
    prompts = [(case["prompt_ids"], len(case["output_ids"])) for case in cases]
    assert continuations(tmp_path / "model.gguf", prompts) == [case["output_ids"] for case in cases]
