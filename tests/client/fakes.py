"""Small real servers for the SDK to talk to: a byte tokenizer and a worker whose model counts through a script. They
speak the whole contract over loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from tandem.client.background import _handle
from tandem.inference.v1 import admin_pb2_grpc, inference_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker


async def start_tokenizer(tokenizer: ByteTokenizer, address: str = "127.0.0.1:0") -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(tokenizer, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, f"127.0.0.1:{port}"


async def start_worker(
    worker: CountingWorker, address: str = "127.0.0.1:0", *, health: bool = True
) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(worker, server)
    admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(worker, server)
    if health:
        health_pb2_grpc.add_HealthServicer_to_server(worker.health, server)
        await worker.set_serving(True)
    port = server.add_insecure_port(address)
    await server.start()
    return server, f"127.0.0.1:{port}"


@asynccontextmanager
async def serving_tokenizer(tokenizer: ByteTokenizer | None = None) -> AsyncIterator[tuple[ByteTokenizer, str]]:
    tokenizer = tokenizer or ByteTokenizer()
    server, address = await start_tokenizer(tokenizer)
    try:
        yield tokenizer, address
    finally:
        await server.stop(0)


@asynccontextmanager
async def serving_workers(*workers: CountingWorker, health: bool = True) -> AsyncIterator[list[str]]:
    started = [await start_worker(worker, health=health) for worker in workers]
    try:
        yield [address for _, address in started]
    finally:
        for server, _ in started:
            await server.stop(0)


class ServersThread:
    """Both services on an event loop in a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Several event loops in one process find gRPC's wake-up socket empty at times.
        self.loop.set_exception_handler(_handle)
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.tokenizer, self.worker = ByteTokenizer(), CountingWorker([*ids_of_text(TEXT), EOS])
        self._servers = []
        server, self.tokenizer_address = self.run(start_tokenizer(self.tokenizer))
        self._servers.append(server)
        server, self.worker_address = self.run(start_worker(self.worker))
        self._servers.append(server)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def set(self, event: asyncio.Event) -> None:
        self.loop.call_soon_threadsafe(event.set)

    def wait(self, event: asyncio.Event) -> None:
        self.run(asyncio.wait_for(event.wait(), 30))

    def stop(self) -> None:
        for server in self._servers:
            self.run(server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
