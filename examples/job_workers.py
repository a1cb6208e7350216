"""Jobs in a pool of processes, as Celery runs them: each process makes its client after it was started.

A client that is open must not cross a fork. With Celery, connect in the signal `worker_process_init` and close in
`worker_process_shutdown`; the task is `tell`.
"""

from __future__ import annotations

import atexit
from concurrent.futures import ProcessPoolExecutor

from tandem.client import Client

client: Client


def connect() -> None:
    global client
    client = Client()
    atexit.register(client.close)


def tell(prompt: str) -> str:
    return client.generate(prompt, max_tokens=16, seed=1).text


if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=connect) as pool:
        for text in pool.map(tell, ["ROMEO:", "JULIET:", "First Citizen:"]):
            print(repr(text))
