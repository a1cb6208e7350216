"""Every key of a GGUF file, changed: what is computed changes too, or the file is refused by the key's name, or the key
is in the table of neutral ones and the bits stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.worker.checkpoints.gguf_fields import known_keys
from tests.exhaustive import some
from tests.worker_svc.checkpoints.every_field import TOMORROW, Field, Served, others, served
from tests.worker_svc.checkpoints.gguf_kinds import ARCHITECTURES as GGUF_ARCHITECTURES
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.tried_folders import FOLDERS
from tests.worker_svc.model.random_models import saved


def plain_of(path: Path, architecture: str) -> dict[str, Any]:
    """The keys that a test's file has, as far as a value of another size can be written for them."""
    import gguf

    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if key.startswith(f"{architecture}.")}


@pytest.mark.parametrize(
    "name",
    some(
        [
            *("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "granite", "olmo2", "starcoder2", "deepseek_v3"),
            *("glm", "ernie4_5_moe", "gemma", "cohere", "stablelm", "granitemoeshared", "solar_open"),
        ],
        "llama",
        "qwen3_moe",
        "granite",
    ),
)
def test_every_key_of_a_gguf_file_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    kind, changes = FOLDERS[name]
    changes = {key: value for key, value in changes.items() if "window" not in key}
    if name == "qwen3_moe":
        changes["norm_topk_prob"] = True
    if name == "deepseek_v3":
        changes["attention_bias"] = False
    reference = saved(kind, tmp_path / "hf", **changes)
    architecture = GGUF_ARCHITECTURES[name]
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 500, "attn_factor": 1.5}
    scaling |= {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0}
    if name == "deepseek_v3":
        del scaling["attn_factor"]
    metadata: dict[str, Any] = {f"{architecture}.rope.scaling.{key}": value for key, value in scaling.items()}
    metadata[f"{architecture}.rope.freq_base"] = 100.0
    path = save_gguf(reference, tmp_path / "model.gguf", metadata=metadata)
    before = served(path)
    assert isinstance(before, Served), before
    own = plain_of(path, architecture)
    table = known_keys(architecture)
    # what a tensor's shape says as well, and what only layers without experts have
    idle = {f"{architecture}.{key}" for key in ("feed_forward_length", "expert_feed_forward_length")}
    idle |= {f"{architecture}.{key}" for key in ("attention.sliding_window_pattern", "rope.freq_base_swa")}  # windows
    for key in [*table, f"{architecture}.{TOMORROW}", f"another.{TOMORROW}"]:
        if key in ("general.architecture", "general.alignment"):
            continue  # how the file is read
        field = Field(key, table.get(key), before)
        for value in others(own.get(key)) if key in own else [True, 3, 0.5, "other"]:
            field.check(value, served(save_gguf(reference, path, metadata=metadata | {key: value})))
        field.end(idle)
