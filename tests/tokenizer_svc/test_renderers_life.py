"""Whoever stops or kills the processes that render templates makes no caller's template wrong."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import grpc
import psutil
import pytest

from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.integration.worker_process import service_process

pytestmark = pytest.mark.slow

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSTOP"])
async def test_a_conversation_is_rendered_whatever_was_done_to_idle_renderers(
    name: str, repository: Path, tmp_path: Path
):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(repository / "models/demo/tokenizer.model", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    request = tokenizer_pb2.EncodeChatRequest(messages=[tokenizer_pb2.ChatMessage(role="user", content="Hi")])
    async with (
        service_process("tandem.tokenizer", tmp_path, "--tokenizer", str(folder)) as (address, process),
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        expected = await stub.EncodeChat(request, timeout=120)
        below = psutil.Process(process.pid).children(recursive=True)
        renderers = [each for each in below if "tandem.tokenizer.chat.renderer_process" in each.cmdline()]
        assert renderers
        for renderer in renderers:
            renderer.send_signal(signal.Signals[name])
        for _ in range(4):
            assert (await stub.EncodeChat(request, timeout=120)).ids == expected.ids
        assert not psutil.wait_procs(renderers, timeout=60)[1], "nobody is left behind"
