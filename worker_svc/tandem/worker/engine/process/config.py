"""Configures an engine: a part of the worker's settings. No torch: the front reads this file too, and stays small."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandem.worker.engine.guides.limits import (
    DEFAULT_COMPILE_SECONDS,
    DEFAULT_MASK_SECONDS,
    DEFAULT_MEMORY_MB,
    DEFAULT_TOTAL_MEMORY_MB,
)

# Tokens in a step and running requests. A GPU computes 256 decodes in hardly more time than 64, and thousands of tokens
# before its matrix units are busy; a CPU's streams would wait for both.
OWN_HEAD = "mtp"  # as tensors of such heads are called
# A CPU computes 256 tokens a step no slower than 512, and others wait half as long behind a prompt.
DEFAULT_LOADS = {"cpu": (256, 64), "cuda": (4096, 256)}

LORA = (
    "NAME=FOLDER: a LoRA adapter, as PEFT writes it, that stays beside the model and changes the answers of requests "
    "whose `model` is NAME; repeatable. For models in Hugging Face's layout, quantized or not"
)
MOST_ADAPTERS = 256
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}")


class EngineConfig(BaseModel):
    """Says how to build an engine; 0 and "auto" let it choose. Each field is a setting of the worker."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(description="checkpoint: a folder in Meta's or Hugging Face's layout, or a GGUF file")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto",
        description="of weights and cache; auto: on a CPU the checkpoint's own, bfloat16 for a quantized one; "
        "on a GPU bfloat16, float16 for a float16 checkpoint",
    )
    quantize: Literal["auto", "none", "int8", "int4", "fp8"] = Field(
        default="auto",
        description="of weights; auto: as the checkpoint has them; none: quantized ones are made plain; "
        "int8, int4, fp8: made at load",
    )
    quantize_group: int = Field(
        default=0,
        ge=0,
        le=128,
        description="inputs that share a scale: 32, 64 or 128; 0: a whole output channel for int8, 64 for int4",
    )
    int8_activations: bool = Field(
        default=False,
        description="on a CPU, activations beside int8 weights in groups of 32 (Q8_0) become int8, as llama.cpp has "
        "it, not int16: quicker prompts and batches, less exact",
    )
    reproducible: bool = Field(
        default=True,
        description="a request's bits do not depend on the batch; costs speed on CUDA, is always so on a CPU",
    )
    cuda_graphs: bool = Field(default=True, description="record steps of decodes at start and replay them, on CUDA")
    overlap: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="launch a step before the one before it is read, where its requests allow that; auto: on CUDA",
    )
    tensor_parallel: int = Field(
        default=1, ge=1, le=64, description="processes, each with a part of every matrix, that compute together"
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="of the engine on a CPU; 0: one for each physical core that it may use, less one of four or more "
        "where cores have no second thread for others",
    )
    numa_node: int = Field(
        default=-1,
        ge=-1,
        le=1023,
        description="memory node whose cores an engine on a CPU uses; -1: of several, that with most free memory",
    )
    page_size: int = Field(default=64, ge=4, le=256, description="tokens in a page of the KV cache")
    kv_cache_dtype: Literal["auto", "fp8", "int8", "int6", "int4"] = Field(
        default="auto", description="how keys and values are stored; auto: as the model computes"
    )
    kv_cache_tokens: int = Field(
        default=0, ge=0, description="capacity of the KV cache; 0: a share of the memory that is free"
    )
    kv_cache_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="that share, measured when the weights are loaded and the largest chunk was computed once; "
        "0: 0.25 of a CPU's memory, 0.9 of a GPU's, never more than all running requests could fill",
    )
    state_slots: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="states of sequences, of models whose layers have such (Qwen3.5, Granite 4, ...): those of running "
        "requests, a quarter or more for prefixes; 0: two for each running request, at most half of the cache's memory",
    )
    context_length: int = Field(default=0, ge=0, description="prompt and output together; 0: the model's own")
    rope_scale: float = Field(
        default=1.0, ge=1, le=1024, description="divides positions, for so many times the model's context"
    )
    rope_alpha: float = Field(
        default=1.0, ge=1, le=1024, description="raises rope's theta (NTK), for about so many times the model's context"
    )
    max_batch_tokens: int = Field(
        default=0, ge=0, description="tokens computed in one step; 0: 256 on a CPU, 4096 on a GPU"
    )
    max_running_requests: int = Field(
        default=0, ge=0, le=4096, description="requests that run at once; 0: 64 on a CPU, 256 on a GPU"
    )
    draft_tokens: int = Field(
        default=0,
        ge=0,
        le=32,
        description="tokens that speculation guesses at most, for requests that name no number; 0: none, or 4 where "
        "there is a draft_model",
    )
    speculate: Literal["auto", "always"] = Field(
        default="auto",
        description="compute drafts where they are likely to give more tokens per second (auto), or always, "
        "as if they were free",
    )
    adapter: str = Field(
        default="",
        description="folder of a LoRA adapter, as PEFT writes it, whose changes are added to the weights when they are "
        "loaded; for models in Hugging Face's layout that are not stored quantized",
    )
    lora: tuple[str, ...] = Field(default=(), description=LORA)
    draft_model: str = Field(
        default="",
        description="checkpoint of a small model with the same vocabulary, which guesses for the large one; "
        f"{OWN_HEAD}: the head that the model's own checkpoint has for it (Qwen3.5, GLM-4.5, DeepSeek V3)",
    )
    guide_compile_seconds: float = Field(
        default=DEFAULT_COMPILE_SECONDS,
        gt=0,
        le=600,
        description="processor seconds in which a guide must be compiled; else it is refused",
    )
    guide_mask_seconds: float = Field(
        default=DEFAULT_MASK_SECONDS,
        gt=0,
        le=600,
        description="processor seconds that a guide may take between two tokens; else its request ends",
    )
    guide_memory_mb: int = Field(
        default=DEFAULT_MEMORY_MB, ge=64, le=65_536, description="memory that the process of one guide may take, MiB"
    )
    guide_total_memory_mb: int = Field(
        default=DEFAULT_TOTAL_MEMORY_MB,
        ge=64,
        le=1_048_576,
        description="memory that the processes of all guides may take together, MiB; new guides are refused near it",
    )

    @model_validator(mode="after")
    def _adapters_are_named(self) -> EngineConfig:
        if self.adapters() and self.tensor_parallel > 1:
            raise ValueError("lora is not served with tensor_parallel; --adapter adds one to the weights")
        return self

    def adapters(self) -> dict[str, Path]:
        """Maps names of adapters to their folders, in the order of their numbers. Raises ValueError."""
        found: dict[str, Path] = {}
        for entry in self.lora:
            name, _, folder = entry.partition("=")
            if not _ADAPTER_NAME.fullmatch(name) or not folder:
                raise ValueError(f"--lora {entry}: NAME=FOLDER is expected, a NAME of letters, digits and . _ - : /")
            if name in found:
                raise ValueError(f"--lora {entry}: the name {name!r} is given twice")
            found[name] = Path(folder)
        if len(found) > MOST_ADAPTERS:
            raise ValueError(f"--lora is given {len(found)} times; at most {MOST_ADAPTERS} adapters are served")
        return found

    def on(self, device: str) -> EngineConfig:
        """Returns the configuration on a type of device, with what that decides."""
        tokens, requests = DEFAULT_LOADS.get(device, DEFAULT_LOADS["cpu"])
        return self.model_copy(
            update={
                "max_batch_tokens": self.max_batch_tokens or tokens,
                "max_running_requests": self.max_running_requests or requests,
            }
        )

    @property
    def step_tokens(self) -> int:
        """Returns how many tokens a step may compute: one for each running request at least."""
        return max(self.max_batch_tokens, self.max_running_requests)


class BuildError(ValueError):
    """The configuration does not go together with the model or the machine; one line."""
