"""A real worker for a whole module, and small random models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.integration.worker_process import Worker, running_worker


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama in Hugging Face's layout; its context holds 512 tokens, its vocabulary 300."""
    folder = tmp_path_factory.mktemp("random-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(random_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    """One worker with a cache that is far smaller than what 64 streams could fill."""
    folder = tmp_path_factory.mktemp("worker")
    async with running_worker(
        folder, "--model", str(random_llama), "--model-name=random", "--kv-cache-tokens=640", "--page-size=16"
    ) as worker:
        yield worker
