"""Settings of the inference worker; each is a flag, an environment variable and a key of the configuration file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from tandem.common.peers import PeerFiles
from tandem.common.settings import ServiceSettings, Strings
from tandem.worker.engine.process.config import LORA, EngineConfig


class WorkerSettings(EngineConfig, ServiceSettings):
    """What an operator may choose; the defaults serve one model on what the machine has."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-worker", env_prefix="TANDEM_WORKER_")

    lora: Strings = Field(default=(), description=LORA)
    model_name: str = Field(default="", description="name that requests may ask for; empty: the folder's name")
    engine: Literal["process", "thread"] = Field(
        default="process", description="run the engine in a process of its own, or in a thread (for debugging)"
    )
    gateway: bool = Field(
        default=False,
        description="serve the contract of vLLM's gRPC engine too, on the same port, for gateways such as smg",
    )
    page_events: bool = Field(
        default=False,
        description="keep track of cached pages from the start, and not only while a gateway subscribes to them",
    )
    load_reports: bool = Field(
        default=False,
        description="tell load as ORCA reports, behind each answer and as a stream, for gRPC's and Envoy's balancers",
    )
    engine_stall_seconds: float = Field(
        default=0.0,
        ge=0,
        description="seconds after which an engine that neither steps nor answers is killed and restarted; 0: 60 on a "
        "GPU, 30 on a CPU, where time in which it computes counts a tenth",
    )
    max_waiting_requests: int = Field(default=1024, ge=0, description="requests that may wait; more are refused")
    max_waiting_tokens: int = Field(default=1 << 20, ge=1, description="prompt tokens that may wait; more are refused")
    cache_per_caller: bool = Field(
        default=False,
        description="prompts share cached pages only with those of the same caller, so that times to first token do "
        "not tell what others have asked",
    )
    admin_token_file: Path | None = Field(
        default=None,
        description="file of operators' bearer tokens; with it, only their holders may drain the worker or clear "
        "its cache",
    )
    vllm_metric_names: bool = Field(
        default=False,
        description="show the metrics that vLLM has under its names too (`vllm:num_requests_running`), for endpoint "
        "pickers and autoscalers that scrape pods",
    )
    tokenizer_address: str = Field(
        default="",
        description="HOST:PORT of the tokenizer service; asked at start for the fingerprint and the vocabulary size",
    )
    tokenizer_address_file: Path | None = Field(
        default=None,
        description="file into which that service writes its address, instead of tokenizer_address; waited for once "
        "the model is loaded, so that both may start side by side",
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
    def _gateways_have_their_packages(self) -> Self:
        if self.gateway and find_spec("smg_grpc_proto") is None:
            raise ValueError("gateway needs the package smg-grpc-proto: pip install 'tandem-llm[gateway]'")
        if self.load_reports and find_spec("xds") is None:
            raise ValueError("load_reports needs the package xds-protos: pip install 'tandem-llm[gateway]'")
        if self.page_events and not self.gateway:
            raise ValueError("page_events needs gateway: nobody else is told of them")
        return self

    @property
    def served_name(self) -> str:
        """Returns the name of the model, by which requests ask for it without an adapter."""
        return self.model_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if self.served_name in self.adapters():
            raise ValueError(f"lora: the name {self.served_name!r} is the model's own (model_name)")
        return self

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
        """Returns how the tokenizer service is reached."""
        return PeerFiles(
            tls=self.tokenizer_tls,
            ca=self.tokenizer_tls_ca,
            server_name=self.tokenizer_tls_server_name,
            certificate=self.tokenizer_tls_certificate,
            key=self.tokenizer_tls_key,
            token=self.tokenizer_token_file,
        )

    def engine_config(self) -> EngineConfig:
        """Returns the part that the engine needs."""
        return EngineConfig(**self.model_dump(include=set(EngineConfig.model_fields)))
