"""Settings of the inference worker; each is a flag, an environment variable and a key of the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from tandem.common.peers import PeerFiles
from tandem.common.settings import ServiceSettings
from tandem.worker.engine.config import EngineConfig
from tandem.worker.engine.guides.limits import (
    DEFAULT_COMPILE_SECONDS,
    DEFAULT_MASK_SECONDS,
    DEFAULT_MEMORY_MB,
    DEFAULT_TOTAL_MEMORY_MB,
)


class WorkerSettings(ServiceSettings):
    """What an operator may choose; the defaults serve one model on what the machine has."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-worker", env_prefix="TANDEM_WORKER_")

    model: str = Field(description="checkpoint: a folder in Meta's or Hugging Face's layout, or a GGUF file")
    model_name: str = Field(default="", description="name that requests may ask for; empty: the folder's name")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto",
        description="of weights and cache; auto: on a CPU bfloat16 where it has instructions for it, else float32; "
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
    reproducible: bool = Field(
        default=True,
        description="the same bits for a request in any company; on CUDA it costs speed, on a CPU it is so",
    )
    cuda_graphs: bool = Field(default=True, description="record steps of decodes at start and replay them, on CUDA")
    overlap: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="launch a step before the one before it is read, where its requests allow that; auto: on CUDA",
    )
    tensor_parallel: int = Field(
        default=1, ge=1, le=64, description="processes, each with a part of every matrix, that compute together"
    )
    threads: int = Field(default=0, ge=0, le=1024, description="of the engine on a CPU; 0: the cores it may use")
    engine: Literal["process", "thread"] = Field(
        default="process", description="run the engine in a process of its own, or in a thread (for debugging)"
    )
    engine_stall_seconds: float = Field(
        default=0.0,
        ge=0,
        description="an engine that neither steps nor answers for so long is killed and started again; 0: 60 on a GPU, "
        "30 on a CPU, where time in which it computes counts a tenth",
    )
    page_size: int = Field(default=64, ge=4, le=256, description="tokens in a page of the KV cache")
    kv_cache_dtype: Literal["auto", "fp8", "int8", "int4"] = Field(
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
    context_length: int = Field(default=0, ge=0, description="prompt and output together; 0: the model's own")
    rope_scale: float = Field(
        default=1.0, ge=1, le=1024, description="divides positions, for so many times the model's context"
    )
    rope_alpha: float = Field(
        default=1.0, ge=1, le=1024, description="raises rope's theta (NTK), for about so many times the model's context"
    )
    max_batch_tokens: int = Field(default=512, ge=1, description="tokens computed in one step")
    max_running_requests: int = Field(default=64, ge=1, le=4096, description="requests that run at once")
    max_waiting_requests: int = Field(default=1024, ge=0, description="requests that may wait; more are refused")
    max_waiting_tokens: int = Field(default=1 << 20, ge=1, description="prompt tokens that may wait; more are refused")
    draft_tokens: int = Field(
        default=0,
        ge=0,
        le=32,
        description="tokens that speculation guesses at most, for requests that name no number; 0: none, or 4 where "
        "there is a draft_model",
    )
    cache_per_caller: bool = Field(
        default=False,
        description="prompts share cached pages only with those of the same caller, so that no time to first token "
        "tells what others have asked",
    )
    speculate: Literal["auto", "always"] = Field(
        default="auto",
        description="requests that ask for drafts get them where more tokens per second are likely (auto), or always, "
        "as if what computes them cost nothing",
    )
    draft_model: str = Field(
        default="", description="checkpoint of a small model with the same vocabulary, which guesses for the large one"
    )
    guide_compile_seconds: float = Field(
        default=DEFAULT_COMPILE_SECONDS,
        gt=0,
        le=600,
        description="processor time in which a guide must be compiled; else it is refused",
    )
    guide_mask_seconds: float = Field(
        default=DEFAULT_MASK_SECONDS,
        gt=0,
        le=600,
        description="processor time that a guide may take between two tokens; else its request ends",
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
    admin_token_file: Path | None = Field(
        default=None,
        description="file of operators' bearer tokens; with it, only who has one of them may drain the worker or clear "
        "its cache",
    )
    tokenizer_address: str = Field(
        default="",
        description="HOST:PORT of the tokenizer service; asked at start for the fingerprint and the vocabulary size",
    )
    tokenizer_name: str = Field(default="", description="which of its tokenizers; empty: its default")
    tokenizer_fingerprint: str = Field(default="", description="known fingerprint, instead of tokenizer_address")
    tokenizer_tls: bool = Field(default=False, description="ask the tokenizer service over TLS (system's authorities)")
    tokenizer_tls_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of its certificate; with it, it is asked over TLS",
    )
    tokenizer_tls_server_name: str = Field(
        default="", description="name in its certificate, when that is not the host of tokenizer_address"
    )
    tokenizer_tls_certificate: Path | None = Field(
        default=None, description="PEM file of the certificate that the worker shows to it (mutual TLS)"
    )
    tokenizer_tls_key: Path | None = Field(default=None, description="PEM file of that certificate's private key")
    tokenizer_token_file: Path | None = Field(default=None, description="file of a bearer token for it")
    tokenizer_wait_seconds: float = Field(default=60.0, gt=0, description="how long to wait for the tokenizer service")

    @model_validator(mode="after")
    def _tokenizer_connection_is_whole(self) -> Self:
        if (self.tokenizer_tls_certificate is None) != (self.tokenizer_tls_key is None):
            raise ValueError("tokenizer_tls_certificate and tokenizer_tls_key go together: give both or neither")
        if not self.tokenizer_tls and self.tokenizer_tls_ca is None:
            for name in ("tokenizer_tls_certificate", "tokenizer_tls_server_name"):
                if getattr(self, name):
                    raise ValueError(f"{name} needs tokenizer_tls or tokenizer_tls_ca")
        return self

    def tokenizer_peer(self) -> PeerFiles:
        """How the tokenizer service is reached."""
        return PeerFiles(
            tls=self.tokenizer_tls,
            ca=self.tokenizer_tls_ca,
            server_name=self.tokenizer_tls_server_name,
            certificate=self.tokenizer_tls_certificate,
            key=self.tokenizer_tls_key,
            token=self.tokenizer_token_file,
        )

    def engine_config(self) -> EngineConfig:
        """The part that the engine needs."""
        return EngineConfig(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            reproducible=self.reproducible,
            cuda_graphs=self.cuda_graphs,
            overlap=self.overlap,
            speculate=self.speculate,
            quantize=self.quantize,
            quantize_group=self.quantize_group,
            tensor_parallel=self.tensor_parallel,
            threads=self.threads,
            page_size=self.page_size,
            kv_cache_dtype=self.kv_cache_dtype,
            kv_cache_tokens=self.kv_cache_tokens,
            kv_cache_fraction=self.kv_cache_fraction,
            context_length=self.context_length,
            rope_scale=self.rope_scale,
            rope_alpha=self.rope_alpha,
            max_batch_tokens=max(self.max_batch_tokens, self.max_running_requests),
            max_running=self.max_running_requests,
            draft_tokens=self.draft_tokens,
            draft_model=self.draft_model,
            guide_compile_seconds=self.guide_compile_seconds,
            guide_mask_seconds=self.guide_mask_seconds,
            guide_memory_mb=self.guide_memory_mb,
            guide_total_memory_mb=self.guide_total_memory_mb,
        )
