"""Runs one engine as several processes: rank 0, which the front talks to, and those that follow it.

Every rank runs the same loop over the same messages. Rank 0 broadcasts what has come once a turn, even nothing, so
that a request, an abort or a command reaches all of them between the same two steps; so does what a step took by its
clock, which decides about drafts. Results leave from rank 0 alone.

On one machine rank 0 starts the others. Over several, the usual variables say where to meet: `MASTER_ADDR`,
`MASTER_PORT` and, where the worker runs, `LOCAL_WORLD_SIZE`: the ranks that it starts itself. The rest are started by

    RANK=2 LOCAL_RANK=0 WORLD_SIZE=4 MASTER_ADDR=host MASTER_PORT=29500 \\
        python -m tandem.worker.engine.process.tensor_parallel

or by torchrun, and again each time the worker's engine is. They learn everything else from rank 0; the model must lie
under the same path.

No rank outlives another: rank 0 watches those it has started and leaves when one has ended; they leave when their
standard input ends; and a connection that breaks, or says nothing for COLLECTIVE_SECONDS, ends the ranks at both ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from tandem.common.cores import settle
from tandem.common.logs import configure_logging
from tandem.common.stop_signals import leave_with_parent
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.loop import Transport, leaving_without_memory, run_engine
from tandem.worker.engine.process.messages import Inbound, Outbound
from tandem.worker.engine.process.options import ProcessOptions
from tandem.worker.engine.process.processes import RANK_KILLED, crashed, describe_end
from tandem.worker.model.parallel import Ranks

logger = logging.getLogger("tandem.worker.engine")

COLLECTIVE_SECONDS = 120  # ranks do the same work; one that is so late is not coming
LOAD_SECONDS = 3600  # for the slowest rank to read its weights
_GRACE_SECONDS = 1.0  # for rank 0 to say itself why ranks have ended
_LEAVE_SECONDS = 5.0
_OPTIONS = "tandem/options"  # key of what the followers are told


class SharedTransport:
    """Gives all ranks the messages that reach rank 0, and sends answers from rank 0 alone."""

    def __init__(self, ranks: Ranks, front: Transport | None) -> None:
        """`front` is rank 0's own transport."""
        self._ranks, self._front = ranks, front
        self._own: list[Inbound] = []  # rank 0's, for all
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[Inbound])

    def receive(self, *, wait: bool) -> list[Inbound]:
        if self._front is None:
            return self._decoder.decode(self._ranks.broadcast(b""))
        messages = [*self._own, *self._front.receive(wait=wait)]
        self._own.clear()
        self._ranks.broadcast(self._encoder.encode(messages))
        return messages

    def send(self, message: Outbound) -> None:
        if self._front is not None:
            self._front.send(message)

    def tell(self, message: Inbound) -> None:
        """Sends a message of rank 0 to all with the next ones; on other ranks does nothing."""
        if self._front is not None:
            self._own.append(message)


@contextlib.contextmanager
def leading(options: ProcessOptions, config: EngineConfig) -> Iterator[tuple[Ranks, EngineConfig]]:
    """Joins the ranks as rank 0, starts and watches the others, and yields the ranks and what rank 0 is to build."""
    size = config.tensor_parallel
    address = os.environ.get("MASTER_ADDR", "")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if address else size
    port = int(os.environ.get("MASTER_PORT", "0")) if address else 0
    if not address:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address or "127.0.0.1", port, size, True, timedelta(seconds=LOAD_SECONDS), wait_for_workers=False
    )
    store.set(_OPTIONS, msgspec.json.encode(options).decode())
    environment = {
        **os.environ,
        "MASTER_ADDR": address or "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(local),
    }
    followers = [_follower(rank, environment) for rank in range(1, local)]
    leaving = threading.Event()
    for rank, follower in enumerate(followers, 1):
        threading.Thread(target=_watch, args=(rank, follower, leaving), name=f"rank-{rank}", daemon=True).start()
    try:
        yield _joined(store, config, 0, size, 0, local)
        leaving.set()
    except Exception:
        if any(map(_was_killed, followers)):  # then all that has failed here is the connection to it
            logger.exception("a rank was killed: stopping the engine")
            raise SystemExit(RANK_KILLED) from None
        raise
    finally:
        # They have heard of the end as we have, or have failed as we have.
        deadline = time.monotonic() + (_LEAVE_SECONDS if leaving.is_set() else 0)
        for follower in followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(max(0.0, deadline - time.monotonic()))
            follower.kill()


def _follower(rank: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, "-m", "tandem.worker.engine.process.tensor_parallel", "--leave-with-parent"]
    return subprocess.Popen(command, env=environment | place, stdin=subprocess.PIPE)  # noqa: S603


def _watch(rank: int, follower: subprocess.Popen[bytes], leaving: threading.Event) -> None:
    code = follower.wait()
    if leaving.wait(_GRACE_SECONDS):
        return
    logger.error("rank %d ended (%s): stopping the engine", rank, describe_end(code))
    # Whatever the main thread does: it may wait for that rank.
    os._exit(1 if crashed(code) else RANK_KILLED)


def _was_killed(follower: subprocess.Popen[bytes]) -> bool:
    """Tells whether a rank has ended, or is about to, because somebody else ended it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return not crashed(follower.wait(_GRACE_SECONDS / 2)) and follower.returncode != 0
    return False


def _joined(
    store: Any, config: EngineConfig, rank: int, size: int, local_rank: int, local: int
) -> tuple[Ranks, EngineConfig]:
    """Connects to the other ranks."""
    with_cuda = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    if with_cuda:
        torch.cuda.set_device(local_rank)
        config = config.model_copy(update={"device": f"cuda:{local_rank}"})
    beside = local if with_cuda else settle(config.numa_node, local_rank, local)
    dist.init_process_group(
        "nccl" if with_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LOAD_SECONDS),
    )
    group = dist.new_group(timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    return Ranks(rank, size, group, local, beside), config


def main() -> int:
    """Runs one of the ranks that follow."""
    if "--leave-with-parent" in sys.argv[1:]:
        leave_with_parent()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, False, timedelta(seconds=LOAD_SECONDS))  # type: ignore[attr-defined]
    options = msgspec.json.decode(store.get(_OPTIONS), type=ProcessOptions)
    configure_logging(options.log_format, options.log_level, f"tandem-engine-rank-{rank}")
    torch.set_grad_enabled(False)
    config = EngineConfig.model_validate(options.config)
    local_rank, local = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    ranks, config = _joined(store, config, rank, size, local_rank, local)
    shared = SharedTransport(ranks, None)
    with leaving_without_memory():
        return 0 if run_engine(config, shared, ranks, shared.tell) else 1


if __name__ == "__main__":
    try:
        code = main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    logging.shutdown()
    # The process group has threads that Python's end does not wait for: at times it ends by an abort instead.
    os._exit(code)
