"""Our engine as a side of `models.py`: called and asked as `peer_engines.py` tells, given fields of `EngineConfig` too.

The whole engine in process: pages, scheduler and sampler included. Beside steps of one sequence it reads other memory.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_engines import prompt
from benchmarks.sides import serve

READ = 1 << 27  # numbers of 8 bytes that tell how quickly memory is read


class OwnEngine:
    def __init__(
        self, path: str, threads: int, longest: int, together: int, most: int, clock: str, fields: Any
    ) -> None:
        import torch

        from tandem.worker.engine.process.build import build_engine
        from tandem.worker.engine.process.config import EngineConfig

        self._built = build_engine(
            EngineConfig(
                model=path,
                threads=threads,
                kv_cache_tokens=together + 256,
                max_batch_tokens=1024,
                state_slots=2 * most,
                **fields,
            )
        )
        self._engine = self._built.engine
        self._clock = getattr(time, clock)
        self._plain = torch.ones(READ, dtype=torch.int64)
        self._number = 0
        self._reading: list[float] = []

    def _submit(self, ids: Sequence[int], tokens: int) -> int:
        import numpy as np

        from tandem.worker.engine.request import Request, Stopping
        from tandem.worker.engine.sampling import Sampling

        self._number += 1
        rows, likeliest = np.array(ids, np.int32), Sampling(temperature=0.0)
        self._engine.submit(Request.make(self._number, rows, likeliest, Stopping(max_tokens=tokens), bypass=True))
        return self._number

    def greedy(self, ids: list[int]) -> list[int]:
        """What is likeliest after each of the ids."""
        asked = [self._submit(ids[: place + 1], 1) for place in range(len(ids))]
        chosen: dict[int, int] = {}
        while self._engine.has_work:
            step = self._engine.step()
            chosen |= dict(zip(step.numbers.tolist(), step.sampled.ids.tolist(), strict=True))
        return [chosen[each] for each in asked]

    def prefill(self, length: int) -> float:
        """Seconds of a prompt."""
        self._submit(prompt(0, length), 1)
        began = self._clock()
        while self._engine.has_work:
            self._engine.step()
        return float(self._clock() - began)

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of each step."""
        for sequence in range(batch):
            self._submit(prompt(sequence, context), steps + 2)
        seconds: list[float] = []
        if batch == 1:
            self._reading.clear()
        while self._engine.has_work:
            began = self._clock()
            step = self._engine.step()
            if not step.prefill_tokens and step.decode_tokens == batch:
                seconds.append(self._clock() - began)
            if batch == 1 and len(seconds) % 4 == 3:
                began = self._clock()
                self._plain.sum()
                self._reading.append(self._clock() - began)
        return seconds[1:]

    def read(self) -> dict[str, float]:
        """Bytes of a step of one sequence, and what memory gave beside the last ones, in bytes a second."""
        built = self._built
        read = built.weight_bytes - (0 if built.config.tie_embeddings else self._embedding_bytes())
        limit = self._plain.nbytes / statistics.median(self._reading[1:])
        return {"weight_bytes": built.weight_bytes, "bytes_of_a_step": read, "read_bytes_per_second": limit}

    def _embedding_bytes(self) -> int:
        """Of the table of which a step reads some rows."""
        runner: Any = self._engine._runner
        embedding = runner.model.embedding
        return sum(weight.nbytes for weight in (*embedding.parameters(), *embedding.buffers()))


def main() -> None:
    path, threads, longest, together, most, clock, fields = sys.argv[1:]
    engine = OwnEngine(path, int(threads), int(longest), int(together), int(most), clock, json.loads(fields))
    serve({"greedy": engine.greedy, "prefill": engine.prefill, "decode": engine.decode, "read": engine.read})


if __name__ == "__main__":
    main()
