"""The demo model behind a door: a tokenizer service with a chat template, a worker and the door."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import openai
import psutil
import pytest

from tandem.client import AsyncClient
from tests.integration.worker_process import Worker

# Says whatever a template may be given, but a system message that is "No.".
TEMPLATE = """{# Calls are in <tool_call>. #}{{ bos_token }}{% for message in messages -%}
{% if message.role == "system" and message.content == "No." %}{{ raise_exception("Not so.") }}{% endif -%}
{{ message.role | upper }}:
{{ message.content }}
{% for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }}
{% endfor %}
{% endfor %}{% if tools %}{{ tools | tojson }}
{% endif %}{{ mood or "" }}{% if add_generation_prompt %}ROMEO:
{% endif %}"""


@dataclass
class Stack:
    """Addresses of what runs."""

    tokenizer: str
    worker: str
    door: str
    model: Path

    @property
    def url(self) -> str:
        return f"http://{self.door}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a request that succeeds."""
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def client(self) -> AsyncClient:
        """The SDK's, around the door."""
        return AsyncClient(self.tokenizer, self.worker, timeout=120)

    async def load(self) -> tuple[int, int]:
        """How many requests run and wait at the worker."""
        async with grpc.aio.insecure_channel(self.worker) as channel:
            load = await Worker(self.worker, channel).load()
        assert load.integrity_ok, load.integrity_error
        return load.running_requests, load.waiting_requests


def tokenizer_folder(folder: Path, model: Path, template: str = TEMPLATE) -> Path:
    """The model's tokenizer, with a chat template."""
    target = folder / "demo"
    target.mkdir()
    shutil.copy(model / "tokenizer.model", target)
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return target


@contextmanager
def serving(folder: Path, model: Path, template: str = TEMPLATE) -> Iterator[Stack]:
    """All three by `tandem serve`, which leaves nothing behind."""
    command = [sys.executable, "-m", "tandem.client", "serve", f"--model={model}", "--drain=1"]
    command += [f"--{name}-port=0" for name in ("tokenizer", "worker", "http")]
    command += [f"--tokenizer={tokenizer_folder(folder, model, template)}", "--worker-flag=--threads=1"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "ready\n")
        said = dict(line.strip().split("=") for line in itertools.takewhile(bool, lines))
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3, (folder / "log").read_text()
        door = said["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1")
        yield Stack(said["TANDEM_TOKENIZER_ADDRESS"], said["TANDEM_WORKER_ADDRESS"], door, model)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130, (folder / "log").read_text()
    assert not psutil.wait_procs(children, timeout=0)[1]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Stack]:
    with serving(tmp_path_factory.mktemp("stack"), repository / "models" / "demo") as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.base_url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture
async def async_client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key="none", max_retries=0, timeout=120) as client:
        yield client
