"""Prints which compiled libraries are loaded, and what they compute for the model in a folder; run by `test_wheel`."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from tandem.common.field_counter import library as counter
from tandem.common.message_limits import MessageLimits
from tandem.inference.v1 import inference_pb2
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.native.library import library as encoders
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native.library import library as operations
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.linear import HalfPanels, Weight
from tandem.worker.model.quantization import QuantizedWeight, quantize

KINDS = [Quantization(8, 0), Quantization(8, 32), Quantization(8, 128), Quantization(4, 32), Quantization(4, 128)]


def exceeded() -> list[str]:
    request = inference_pb2.GenerateRequest(stopping=inference_pb2.StoppingParams(stop_token_ids=range(3000)))
    limits = MessageLimits(request.DESCRIPTOR, {}).violations(request.SerializeToString())
    return [f"{each.field}: {each.description}" for each in limits]


def weights(matrix: torch.Tensor) -> Iterator[Weight]:
    for dtype in (torch.bfloat16, torch.float16):
        half = HalfPanels(*matrix.shape, dtype)
        half.fill(0, matrix.to(dtype))
        yield half
    for kind in KINDS:
        grouped = quantize(matrix, kind)
        quantized = QuantizedWeight(grouped.kind, *matrix.shape, grouped, torch.device("cpu"))
        quantized.fill(0, grouped)
        yield quantized


def results() -> Iterator[torch.Tensor]:
    """Computes products with and without AVX-512 and AMX, and a layer's other operations."""
    torch.manual_seed(1)
    matrix, x, ours = torch.randn(272, 512), torch.randn(37, 512), NativeOperations()
    for wide, amx in ((True, True), (True, False), (False, False)):
        native.allow_wide(wide)
        native.allow_amx(amx)
        yield from (weight(x[:rows]) for weight in weights(matrix) for rows in (1, 4, 37))
    for dtype in filter(native.wide_serves, native.WIDE_KINDS):
        weight = WidePanels(*matrix.shape, dtype)
        weight.fill(0, matrix.to(dtype))
        for way in native.BF16_WAYS:
            native.limit_bf16(way)
            yield from (weight(x[:rows]) for rows in (1, 4, 37))
    yield ours.add_norm(x.clone(), x, x[0], 1e-5)
    yield ours.swiglu(x, 256)


def main(model: Path) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    loaded = {"counter": counter(), "encoders": encoders(), "operations": operations()}
    found: dict[str, object] = {"libraries": [library._name for library in loaded.values() if library]}
    if loaded["counter"]:
        found["exceeded"] = exceeded()
    if loaded["encoders"]:
        found["ids"] = load_tokenizer(model / "tokenizer.model").encode((model / "README.md").read_text())
    if loaded["operations"]:
        bits = b"".join(result.numpy().tobytes() for result in results())
        found["numbers"] = hashlib.sha256(bits).hexdigest()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
