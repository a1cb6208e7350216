"""The engine's main loop, and its life as a process of its own.

A process of its own because one Python core is what some hundred gRPC streams cost in the front, and the interpreter
lock would stall the steps. It leaves when it is told to, or when its parent is gone: the parent holds our standard
input open, and its end of file is the one signal that even SIGKILL sends.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
import torch
import zmq

from svc_common.logs import configure_logging
from worker_svc.checkpoints import CheckpointError
from worker_svc.engine.build import BuildError, BuiltEngine, build_engine, device_name
from worker_svc.engine.config import EngineConfig
from worker_svc.engine.grammar import Guide, GuideError
from worker_svc.engine.loop import Engine
from worker_svc.engine.messages import (
    Abort,
    Command,
    Compile,
    EngineInfo,
    Inbound,
    Load,
    Outbound,
    ProcessOptions,
    Reply,
    StartFailed,
    StartProgress,
    Step,
    Stop,
    Submit,
    Vocabulary,
)
from worker_svc.engine.ranks import SharedTransport, leading
from worker_svc.model.config import ConfigError
from worker_svc.model.parallel import ALONE, Ranks

logger = logging.getLogger("worker_svc.engine")

_PROGRESS_SECONDS = 1.0
IDLE_SECONDS = 5  # after which an idle engine takes a turn: other ranks hear that rank 0 lives
_COMPILE_WAIT_SECONDS = 0.005  # between two looks at what has come, while nothing runs but a compiler


class Transport(Protocol):
    """Carries messages between the front and the engine, in order."""

    def receive(self, *, wait: bool) -> list[Inbound]:
        """What has come; with `wait`, after waiting for a message for a while."""
        ...

    def send(self, message: Outbound) -> None:
        """Hands a message to the front."""
        ...


def run_engine(config: EngineConfig, transport: Transport, ranks: Ranks = ALONE) -> bool:
    """Builds an engine and runs it until it is told to stop; False if it could not be built. With several `ranks`, each
    of them calls this, with a transport that gives all of them the same messages."""
    try:
        report = _throttled(lambda done, total: transport.send(StartProgress(done, total)))
        built = build_engine(config, report, ranks=ranks)
    except (BuildError, CheckpointError, ConfigError, ValueError) as error:
        transport.send(StartFailed(str(error)))
        return False
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        # torch reports an allocation that failed on the CPU as a RuntimeError.
        transport.send(StartFailed(f"{config.model}: {str(error).splitlines()[0]}"))
        return False
    transport.send(describe(built))
    engine = built.engine
    while True:
        idle = not engine.has_work
        compiling = engine.grammars.compiling
        for message in transport.receive(wait=idle and not compiling and not engine.tidy()):
            match message:
                case Submit():
                    submit(engine, message)
                case Abort():
                    for handle in message.handles:
                        engine.abort(handle)
                case Vocabulary():
                    engine.grammars.load(message.each(), message.special_ids)
                case Compile():
                    resumed = np.frombuffer(message.resumed, dtype=np.int32).tolist()
                    engine.grammars.compile(message.serial, Guide(*message.guide), resumed)
                case Command():
                    transport.send(_obey(engine, message))
                case Stop():
                    return True
        if engine.has_work:
            result = engine.step()
            transport.send(Step.of(result, load_of(engine)))
        elif compiling:
            engine.grammars.wait(_COMPILE_WAIT_SECONDS)
        for serial, wrong in engine.grammars.take_compiled():
            transport.send(Reply(serial, 0, wrong, load_of(engine)))


def submit(engine: Engine, message: Submit) -> None:
    """Hands a request's samples to the engine."""
    requests = message.to_requests()
    try:
        if message.guide is not None:
            for request in requests:
                request.matcher = engine.grammars.matcher(Guide(*message.guide))
    except GuideError as error:  # it was compiled before, so this is rare
        for request in requests:
            engine.refuse(request, str(error))
        return
    engine.submit(*requests)


def _throttled(report: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Passes on a progress report once a second."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            report(done, total)

    return progress


def _obey(engine: Engine, command: Command) -> Reply:
    value, error = 0, ""
    match command.what:
        case "clear_cache":
            value = engine.clear_cache()
        case "check":
            try:
                engine.check()
            except AssertionError as failure:
                error = str(failure) or "the page table contradicts itself"
                logger.error("integrity check failed: %s", error)
    return Reply(command.serial, value, error, load_of(engine))


def load_of(engine: Engine) -> Load:
    """What runs and waits now."""
    table, scheduler = engine.table, engine.scheduler
    counters = scheduler.statistics
    return Load(
        running=len(scheduler.running),
        waiting=scheduler.waiting,
        waiting_tokens=scheduler.waiting_tokens,
        pages_total=table.total,
        pages_free=table.blank,
        pages_cached=table.cached,
        pages_referenced=table.referenced,
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.cached_prompt_tokens,
        output_tokens=counters.output_tokens,
        preemptions=counters.preemptions,
        evictions=table.statistics.evicted_pages,
        merged_pages=table.statistics.merged_pages,
        moved_pages=table.statistics.moved_pages,
        drafts_proposed=counters.drafts_proposed,
        drafts_accepted=counters.drafts_accepted,
        overlapped_steps=counters.overlapped_steps,
        overlap_wasted_tokens=counters.overlap_wasted_tokens,
    )


def describe(built: BuiltEngine) -> EngineInfo:
    """What an engine is, for the front."""
    model, shape = built.config, built.shape
    return EngineInfo(
        architecture=model.architecture,
        checkpoint_format=built.checkpoint_format,
        vocabulary_size=model.vocab_size,
        context_length=min(model.context_length, shape.pages * shape.page_size),
        eos_ids=sorted(built.eos_ids),
        bos_id=built.bos_id,
        sampling_defaults={name: float(value) for name, value in built.sampling_defaults.items()},
        parameters=built.parameters,
        dtype=built.dtype,
        quantization=built.quantization,
        layers=model.num_layers,
        hidden_size=model.hidden_size,
        attention_heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        device=str(built.device),
        device_name=device_name(built.device),
        torch_version=str(torch.__version__),
        threads=built.threads,
        weight_bytes=built.weight_bytes,
        kv_cache_bytes=built.kv_cache_bytes,
        kv_cache_tokens=shape.pages * shape.page_size,
        kv_bytes_per_token=built.kv_bytes_per_token,
        kv_cache_dtype=shape.format.name,
        page_size=shape.page_size,
        row_invariant=built.row_invariant,
        draft_tokens=built.draft_tokens,
        draft_model=built.draft_model,
        ranks=built.ranks,
    )


class _ZmqTransport:
    """Messages over one PAIR socket. When the front stops reading, sending blocks: the engine waits for it."""

    def __init__(self, endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(endpoint)
        self._decoder = msgspec.msgpack.Decoder(Inbound)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, *, wait: bool) -> list[Inbound]:
        messages: list[Inbound] = []
        if wait:
            self._socket.poll(IDLE_SECONDS * 1000)
        while True:
            try:
                messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def send(self, message: Outbound) -> None:
        self._socket.send(self._encoder.encode(message))


def leave_with_parent() -> None:
    """Ends this process, whatever it does, as soon as the parent closes our standard input."""

    def watch() -> None:
        # Not through sys.stdin: the interpreter could not close it at its end while this thread reads.
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main() -> int:
    """`python -m worker_svc.engine.process OPTIONS`, started by the front only."""
    leave_with_parent()
    options = msgspec.json.decode(sys.argv[1], type=ProcessOptions)
    configure_logging(options.log_format, options.log_level, "tandem-engine")
    config = msgspec.convert(options.config, EngineConfig)
    logger.debug("engine process %d: %s", os.getpid(), dataclasses.asdict(config))
    # Read-only: this process never learns.
    torch.set_grad_enabled(False)
    # The modules stay: with torch among them, one full pass of the collector stops the steps for 0.2 s.
    gc.freeze()
    front = _ZmqTransport(options.endpoint)
    if config.tensor_parallel == 1:
        return 0 if run_engine(config, front) else 1
    with leading(options, config) as (ranks, ours):
        return 0 if run_engine(ours, SharedTransport(ranks, front), ranks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
