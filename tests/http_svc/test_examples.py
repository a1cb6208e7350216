"""The programs in examples/ run, each where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.samples import samples
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow


def run(stack: Stack, *command: str | Path, folder: Path) -> str:
    """What a program prints."""
    addresses = {
        "TANDEM_TOKENIZER_ADDRESS": stack.tokenizer,
        "TANDEM_WORKER_ADDRESS": stack.worker,
        "OPENAI_BASE_URL": stack.base_url,
    }
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={**os.environ, **addresses}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")


@pytest.fixture
def examples(repository: Path) -> Path:
    return repository / "examples"


def test_the_samples_of_the_docs(stack: Stack) -> None:
    asking = [code for code in samples().values() if "localhost:8000" in code]
    assert asking
    for code in asking:
        assert run(stack, sys.executable, "-c", code.replace("localhost:8000", stack.door), folder=stack.model).strip()


def test_a_pool_of_processes(stack: Stack, examples: Path) -> None:
    lines = run(stack, sys.executable, "job_workers.py", folder=examples).splitlines()
    assert len(lines) == 3
    assert all(len(line) > 4 for line in lines)


def test_a_web_service(stack: Stack, examples: Path) -> None:
    needs("fastapi")
    program = (
        "from fastapi.testclient import TestClient; from fastapi_app import app\n"
        "with TestClient(app) as web:\n    answer = web.get('/tell', params={'prompt': 'ROMEO:', 'max_tokens': 8})\n"
        "assert answer.status_code == 200\nprint(answer.text)"
    )
    assert run(stack, sys.executable, "-c", program, folder=examples).strip()


def test_langchain(stack: Stack, examples: Path) -> None:
    needs("langchain_openai")
    assert len(run(stack, sys.executable, "langchain_chat.py", folder=examples).splitlines()) >= 2


def test_the_notebook(stack: Stack, examples: Path) -> None:
    """Its cells in order, as one asynchronous program."""
    cells = json.loads((examples / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    body = "\n".join(f"    {line}" for line in [*code.splitlines(), "await client.close()"])
    program = f"import asyncio\nasync def notebook():\n{body}\nasyncio.run(notebook())"
    assert len(run(stack, sys.executable, "-c", program, folder=examples).splitlines()) >= 8


def test_javascript(stack: Stack, examples: Path) -> None:
    node = shutil.which("node")
    if node is None or not (examples / "javascript" / "node_modules").is_dir():
        pytest.skip("needs node, and npm install in examples/javascript")
    shown = run(stack, node, "generate.mjs", "ROMEO:", folder=examples / "javascript")
    assert len(shown) > 10
