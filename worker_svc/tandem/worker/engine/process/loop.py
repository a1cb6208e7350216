"""Runs the engine's main loop: obeys the front's messages, steps while there is work, and reports the results."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from tandem.worker.checkpoints import CheckpointError
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.commands import Commands, load_of
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.process.device import count_peaks, device_name
from tandem.worker.engine.process.messages import (
    Abort,
    Busy,
    Command,
    Compile,
    EngineInfo,
    Forget,
    Inbound,
    Outbound,
    Pages,
    Ping,
    Reply,
    StartFailed,
    StartProgress,
    Step,
    Stop,
    Submit,
    Took,
    Vocabulary,
    Watch,
)
from tandem.worker.engine.process.processes import NO_MEMORY
from tandem.worker.engine.speculation.costs import StepCost
from tandem.worker.model.compilations import report_compilations
from tandem.worker.model.inference import in_inference_mode
from tandem.worker.model.parallel import ALONE, Ranks

logger = logging.getLogger("tandem.worker.engine")

_PROGRESS_SECONDS = 1.0
_GUIDE_WAIT_SECONDS = 0.005  # between two looks at what has come, while nothing runs but a guide's process


class Transport(Protocol):
    """Carries messages between the front and the engine, in order."""

    def receive(self, *, wait: bool) -> list[Inbound]:
        """Returns what has come; with `wait`, after waiting for a message for a while."""
        ...

    def send(self, message: Outbound) -> None:
        """Sends a message to the front."""
        ...


def run_engine(
    config: EngineConfig,
    transport: Transport,
    ranks: Ranks = ALONE,
    tell: Callable[[Inbound], None] | None = None,
    note: Callable[[Sequence[int]], None] = lambda numbers: None,
) -> bool:
    """Builds an engine and runs it until it is told to stop; returns False if it could not be built. With several
    `ranks`, each of them calls this, with a transport that gives all of them the same messages; what `tell` is given on
    rank 0 comes to all of them. `note` is given the numbers of the requests that the next step computes for the first
    time."""
    report_compilations(lambda: transport.send(Busy()))
    try:
        report = _throttled(lambda done, total: transport.send(StartProgress(done, total)))
        built = build_engine(config, report, ranks=ranks)
    except (BuildError, CheckpointError, ConfigError, ValueError) as error:
        transport.send(StartFailed(str(error)))
        return False
    except ArithmeticError as error:
        transport.send(StartFailed(f"{config.model}: its numbers are too large or too small to compute with: {error}"))
        return False
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        # torch reports an allocation that failed on the CPU as a RuntimeError.
        transport.send(StartFailed(f"{config.model}: {str(error).splitlines()[0]}"))
        return False
    transport.send(describe(built))
    built.engine.note = note
    try:
        _serve(built.engine, transport, ranks, tell, note)
    finally:
        built.engine.grammars.stop()
    return True


@in_inference_mode
def _serve(
    engine: Engine,
    transport: Transport,
    ranks: Ranks,
    tell: Callable[[Inbound], None] | None,
    note: Callable[[Sequence[int]], None],
) -> None:
    commands = Commands(engine)
    while True:
        # What ranks do depends on nothing that only rank 0 knows, as whether guides' processes are busy.
        idle = not engine.has_work and not engine.tidy()
        busy = engine.grammars.busy
        for message in transport.receive(wait=idle and not busy):
            match message:
                case Submit():
                    note([message.number])
                    submit(engine, message)
                case Abort():
                    for number in message.numbers:
                        engine.abort(number)
                case Vocabulary():
                    engine.grammars.load(message.each(), message.special_ids)
                case Compile():
                    resumed = np.frombuffer(message.resumed, dtype=np.int32).tolist()
                    engine.grammars.compile(message.serial, Guide(*message.guide), resumed, message.caller)
                case Forget():
                    engine.grammars.forget(message.serial)
                case Ping(serial):
                    ranks.meet()
                    transport.send(Reply(serial, load_of(engine)))
                case Command(serial, rpc, request):
                    response = commands.obey(rpc, request)
                    transport.send(Reply(serial, load_of(engine), response))
                case Watch(wanted):
                    engine.table.chains.watch(wanted)
                case Took():
                    engine.learn(StepCost(message.decodes, message.drafts, message.seconds))
                case Stop():
                    return
        if engine.has_work:
            result = engine.step()
            for finish in result.finished:
                count_peaks(finish.statistics)
            if not result.empty:  # else all wait for their guides
                transport.send(Step.of(result, load_of(engine)))
            if tell is not None and result.cost is not None:
                tell(Took(*result.cost))
        elif busy:
            engine.grammars.wait(_GUIDE_WAIT_SECONDS)
        if (events := engine.table.chains.take_events()) is not None:
            transport.send(Pages.of(events))
        for serial, outcome, error in engine.grammars.take_compiled():
            transport.send(Reply(serial, load_of(engine), outcome=int(outcome), error=error))


@contextlib.contextmanager
def leaving_without_memory() -> Iterator[None]:
    """Ends a process that is out of memory with an exit code that says so."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch reports an allocation that failed on the CPU as a plain RuntimeError.
        plain = not isinstance(error, MemoryError | torch.OutOfMemoryError)
        if plain and "allocate memory" not in str(error):
            raise
        logger.critical("the engine is out of memory: %s", str(error).partition("\n")[0])
        raise SystemExit(NO_MEMORY) from error


def submit(engine: Engine, message: Submit) -> None:
    """Submits a request's samples to the engine."""
    requests = message.to_requests()
    if message.guide is not None:
        for request in requests:
            matcher = engine.grammars.matcher(Guide(*message.guide))
            if request.thinking is not None:
                request.thinking.guide = matcher
                request.matcher = request.thinking.guiding
            else:
                request.matcher = matcher
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


def describe(built: BuiltEngine) -> EngineInfo:
    """Describes the engine for the front."""
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
        state_cache_bytes=built.state_shape.bytes if built.state_shape is not None else 0,
        kv_cache_tokens=shape.pages * shape.page_size,
        kv_bytes_per_token=built.kv_bytes_per_token,
        kv_cache_dtype=shape.format.name,
        page_size=shape.page_size,
        row_invariant=built.row_invariant,
        draft_tokens=built.draft_tokens,
        draft_model=built.draft_model,
        adapters=list(built.adapters),
        tensor_parallel_ranks=built.ranks,
        max_batch_tokens=built.engine.scheduler.limits.max_batch_tokens,
        max_running_requests=built.engine.scheduler.limits.max_running,
    )
