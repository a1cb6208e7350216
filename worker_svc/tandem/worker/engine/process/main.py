"""The engine as a process of its own.

Of its own because one Python core is what some hundred gRPC streams cost in the front, and the interpreter lock would
stall the steps. It leaves when it is told to, or when its parent is gone: the parent holds our standard input open, and
its end of file is the one signal that even SIGKILL sends.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os

import msgspec
import zmq

from tandem.common.cores import settle
from tandem.common.logs import configure_logging
from tandem.common.stop_signals import leave_with_parent
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.messages import Inbound, Outbound, StartFailed
from tandem.worker.engine.process.options import ProcessOptions
from tandem.worker.engine.process.suspects import SuspectNote
from tandem.worker.engine.process.torch_import import gpu_may_be_here, import_torch

logger = logging.getLogger("tandem.worker.engine")

IDLE_SECONDS = 5  # after which an idle engine takes a turn: other ranks hear that rank 0 lives


class _ZmqTransport:
    """Carries messages over one PAIR socket. When the front stops reading, sending blocks: the engine waits for it."""

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


def main() -> int:
    """Runs `python -m tandem.worker.engine.process.main`, started by the front only, which writes `ProcessOptions`
    into our standard input as soon as it knows them."""
    first_line = leave_with_parent()
    gc.disable()  # until all is imported, which stays
    if not gpu_may_be_here():  # else the options decide how torch is imported
        import_torch("cpu")
        importlib.import_module("tandem.worker.engine.process.loop")
    options = msgspec.json.decode(first_line(), type=ProcessOptions)
    configure_logging(options.log_format, options.log_level, "tandem-engine")
    config = EngineConfig.model_validate(options.config)
    logger.debug("engine process %d: %s", os.getpid(), options.config)
    # Read-only: this process never learns.
    torch = import_torch(config.device)
    torch.set_grad_enabled(False)
    from tandem.worker.engine.process.loop import leaving_without_memory, run_engine

    # With torch among them, one full pass of the collector would stop the steps for 0.2 s.
    gc.freeze()
    gc.enable()
    front = _ZmqTransport(options.endpoint)
    note = SuspectNote(options.note).write
    if config.tensor_parallel == 1:
        try:
            if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
                settle(config.numa_node)
        except ValueError as error:
            front.send(StartFailed(str(error)))
            return 1
        with leaving_without_memory():
            return 0 if run_engine(config, front, note=note) else 1
    from tandem.worker.engine.process.tensor_parallel import SharedTransport, leading

    with leaving_without_memory(), leading(options, config) as (ranks, ours):
        shared = SharedTransport(ranks, front)
        return 0 if run_engine(ours, shared, ranks, shared.tell, note) else 1


if __name__ == "__main__":
    raise SystemExit(main())
