"""The demo model behind a door: a tokenizer service with a chat template, a worker and the door, each a process."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import openai
import pytest
import pytest_asyncio

from tandem.client import AsyncClient
from tests.integration.worker_process import Worker, service_process

# Says whatever a template may be given.
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ message.role | upper }}:
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


def tokenizer_folder(folder: Path, model: Path) -> Path:
    """The model's tokenizer, with a chat template."""
    target = folder / "demo"
    target.mkdir()
    shutil.copy(model / "tokenizer.model", target)
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return target


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    model = repository / "models" / "demo"
    async with AsyncExitStack() as services:
        enter = services.enter_async_context
        tokenizer, _ = await enter(
            service_process("tandem.tokenizer", folder, f"--tokenizer={tokenizer_folder(folder, model)}")
        )
        flags = ("--threads=1", f"--model={model}", f"--tokenizer-address={tokenizer}", "--max-running-requests=64")
        worker, _ = await enter(service_process("tandem.worker", folder, *flags))
        door, _ = await enter(service_process("tandem.http", folder, *door_flags(tokenizer, worker)))
        yield Stack(tokenizer, worker, door, model)


def door_flags(tokenizer: str, worker: str) -> tuple[str, ...]:
    """What a door needs to know."""
    return f"--tokenizer-address={tokenizer}", f"--worker-address={worker}"


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.base_url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture
async def async_client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key="none", max_retries=0, timeout=120) as client:
        yield client
