"""A service for the command line to start, stop and lose: quick, and told by environment variables how to behave.

FAKE_<SERVICE> is a list of words: "slow" never becomes ready, "fail" ends at start, "stubborn" ignores SIGTERM and the
end of standard input, "child" has a child process that only a SIGKILL ends. FAKE_PAUSE=n: the worker waits before
token n.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import start_tokenizer, start_worker

STUBBORN_CHILD = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(3600)"


def main(service: str) -> None:
    arguments = sys.argv[1:]
    if arguments == ["--arguments-from-stdin"]:
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            line = stdin.readline()
        if not line:
            return
        arguments = json.loads(line)
    flags = dict(argument[2:].partition("=")[::2] for argument in arguments)
    behaviour = os.environ.get(f"FAKE_{service.upper()}", "").split()
    print(f"fake {service} starts {json.dumps(flags)}", file=sys.stderr, flush=True)
    if "fail" in behaviour:
        print("12:00:00.000 critical svc: cannot start: the checkpoint is upside down", file=sys.stderr)
        raise SystemExit(1)
    if "stubborn" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in behaviour:
        child = subprocess.Popen([sys.executable, "-c", STUBBORN_CHILD])
        print(f"child {child.pid}", file=sys.stderr, flush=True)
    asyncio.run(_serve(service, flags, behaviour))


async def _serve(service: str, flags: dict[str, str], behaviour: list[str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if "stubborn" not in behaviour:
        loop.add_signal_handler(signal.SIGTERM, stop.set)

        def watch() -> None:
            # Not through sys.stdin, which the interpreter could not close at its end while this thread reads.
            while os.read(0, 4096):
                pass
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=watch, daemon=True).start()
    if "slow" not in behaviour:
        if service == "tokenizer":
            server, address = await start_tokenizer(ByteTokenizer())
        else:
            worker = CountingWorker([*ids_of_text(TEXT), EOS])
            worker.drawn_seed = 0
            if "FAKE_PAUSE" in os.environ:
                worker.pause_at = int(os.environ["FAKE_PAUSE"])
            server, address = await start_worker(worker)
        file = Path(flags["address-file"])
        file.with_suffix(".new").write_text(json.dumps({"address": address, "metrics": None, "pid": os.getpid()}))
        file.with_suffix(".new").rename(file)
        print(f"fake {service} serves", file=sys.stderr, flush=True)
    await stop.wait()
    if "slow" not in behaviour:
        await server.stop(0)
    print(f"fake {service} stops", file=sys.stderr, flush=True)
