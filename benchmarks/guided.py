"""What guided decoding costs: steps of 16 guided rows against steps of 16 free ones, on the 1.1 B Llama shape (random
weights), in one run, in turn. Masks are made by processes beside the forward pass, so what shows is what does not fit
there.

    python benchmarks/guided.py --tokenizer TOKENIZER_MODEL [--batch 16] [--steps 12] [--layers 22] [--threads 2]

The tokenizer is a SentencePiece model of 32,000 ids.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from sentencepiece import SentencePieceProcessor

from benchmarks.machine import add_output_flags, save
from benchmarks.random_llama import llama
from benchmarks.unpaged import RandomModel
from tandem.worker.checkpoints.checkpoint import DTYPES
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 400},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 30},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string"}}},
    },
    "required": ["name", "age", "tags", "address"],
}


def pieces(path: str) -> tuple[list[bytes], list[int]]:
    """The bytes of each id of a SentencePiece model, and which ids are no text."""
    model = SentencePieceProcessor(model_file=path)
    ids = range(model.vocab_size())
    special = [i for i in ids if model.is_control(i) or model.is_unknown(i)]
    texts = [model.id_to_piece(i) for i in ids]
    return [
        bytes([int(text[3:5], 16)]) if model.is_byte(i) else text.replace("\u2581", " ").encode()
        for i, text in enumerate(texts)
    ], special


def run(engine: Engine, batch: int, steps: int, guide: Guide | None) -> tuple[list[float], list[float]]:
    """Seconds of each decode step, whole and behind its forward pass."""
    for number in range(batch):
        request = Request.make(number, [1, 5 + number], Sampling(seed=number), Stopping(steps + 2))
        request.matcher = engine.grammars.matcher(guide) if guide is not None else None
        engine.submit(request)
    engine.step()  # prompts
    seconds, behind = [], []
    for _ in range(steps):
        began = time.perf_counter()
        result = engine.step()
        seconds.append(time.perf_counter() - began)
        behind.append(result.sample_seconds)
    for number in range(batch):
        engine.abort(number)
    engine.step()
    return seconds, behind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    config = llama("1.1b", 2048, options.layers)
    model = RandomModel(config, DTYPES[options.dtype], batch=options.batch, length=64)
    grammars = Grammars(config.vocab_size, [2])
    grammars.load(*pieces(options.tokenizer))
    guides = {
        "free": None,
        "json_schema": Guide("json_schema", json.dumps(PERSON)),
        "regex": Guide("regex", r"([a-z]{1,12}[ ,.]){1,100}"),
        "grammar": Guide("grammar", 'start: expr\nexpr: NUM | "(" expr ")" | expr ("+"|"*") expr\nNUM: /[0-9]{1,30}/'),
    }
    began = time.perf_counter()
    grammars.compile(0, guides["json_schema"] or Guide("", ""))
    while not grammars.take_compiled():
        grammars.wait(1)
    compiled = time.perf_counter() - began
    for serial, guide in enumerate(guides.values(), 1):
        if guide is not None:
            grammars.compile(serial, guide)
    while grammars.busy:
        grammars.take_compiled()
        grammars.wait(1)
    engine = Engine(model.runner, PageTable(options.batch, 64), SchedulerLimits(512, options.batch), grammars=grammars)
    seconds: dict[str, list[float]] = {name: [] for name in guides}
    behind: dict[str, list[float]] = {name: [] for name in guides}
    for _ in range(options.rounds):
        for name, guide in guides.items():
            whole, after = run(engine, options.batch, options.steps, guide)
            seconds[name] += whole
            behind[name] += after
    free = statistics.median(seconds["free"])
    rows = [
        {
            "rows": name,
            "step_ms": round(1e3 * statistics.median(seconds[name]), 2),
            "behind_forward_ms": round(1e3 * statistics.median(behind[name]), 2),
            "cost_percent": round(100 * (statistics.median(seconds[name]) / free - 1), 1),
        }
        for name in guides
    ]
    for row in rows:
        print(row)
    print(f"vocabulary and first schema: {compiled:.2f} s")
    print(f"rows left out of a step: {grammars.statistics.guide_left_out_rows}")
    save("guided", options, {"rows": rows, "vocabulary_and_first_schema_seconds": round(compiled, 3)})
    grammars.stop()


if __name__ == "__main__":
    main()
