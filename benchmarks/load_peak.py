"""How much memory does the load of a model of 7 billion parameters in 4 bits take, and does it say how far it is?

python benchmarks/load_peak.py FOLDER --machine epyc2       writes the file there (4 GB), loads it, deletes it

A process of its own loads the file. Its peak counts everything that is resident, pages of the mapped file included,
less what was there before; it is compared with the size of the file and with that of the weights once they are loaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import add_output_flags, save

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 32, 4096, 14336, 32, 8, 32000
BLOCKS = {"Q4_0": (32, 18), "Q4_K": (256, 144), "Q6_K": (256, 210), "F32": (1, 4)}  # numbers and bytes of one


def write_file(path: Path, kind: str) -> None:
    """Writes a model of Mistral 7B's shape, its blocks random."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    stored = {}
    for name, shape in shapes.items():
        stored[name] = "F32" if len(shape) == 1 else "Q6_K" if name == "output.weight" else kind
        size = int(np.prod(shape)) // BLOCKS[stored[name]][0] * BLOCKS[stored[name]][1]
        as_bytes = (*shape[:-1], size // int(np.prod(shape[:-1])))
        dtype = np.dtype(np.float32) if stored[name] == "F32" else np.dtype(np.uint8)
        wanted = None if stored[name] == "F32" else GGMLQuantizationType[kind if stored[name] == kind else "Q6_K"]
        writer.add_tensor_info(name, shape if wanted is None else as_bytes, dtype, size, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in shapes.items():
        writer.write_tensor_data(numbers(stored[name], int(np.prod(shape))))
    writer.close()


def numbers(kind: str, count: int) -> Any:
    """Blocks whose scales are small numbers."""
    if kind == "F32":
        return np.ones(count, np.float32)
    size, width = BLOCKS[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (count // size, width), np.uint8)
    scale = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    if kind == "Q6_K":
        blocks[:, -2:] = scale
    else:
        blocks[:, :2] = scale
    if kind == "Q4_K":
        blocks[:, 2:4] = scale
    return blocks.reshape(-1)


def resident(field: str) -> int:
    """Bytes that are (VmRSS) or at most were (VmHWM) resident, mapped files included."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def load(path: Path) -> dict[str, float]:
    """Loads the file in this process."""
    import torch

    from tandem.worker.checkpoints import open_checkpoint
    from tandem.worker.model.loading import load_transformer

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started = resident("VmRSS"), time.monotonic()
    shares: list[float] = []
    checkpoint = open_checkpoint(path)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, lambda done, whole: shares.append(done / whole))
    peak, after = resident("VmHWM") - before, resident("VmRSS") - before
    weights = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    return {
        "file_bytes": path.stat().st_size,
        "weight_bytes": weights,
        "peak_bytes": peak,
        "resident_after_bytes": after,
        "peak_over_file": round(peak / path.stat().st_size, 3),
        "peak_over_weights": round(peak / weights, 3),
        "progress_calls": len(shares),
        "largest_step_of_progress": round(max(b - a for a, b in zip([0.0, *shares], shares, strict=False)), 4),
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_output_flags(parser)
    parser.add_argument("--kinds", default="Q4_0,Q4_K")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(options.load)))
        return
    found: dict[str, Any] = {}
    for kind in options.kinds.split(","):
        path = options.folder / f"random-7b-{kind}.gguf"
        try:
            write_file(path, kind)
            command = [sys.executable, __file__, str(options.folder), "--load", str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[kind] = json.loads(out.splitlines()[-1])
        finally:
            path.unlink(missing_ok=True)
        print(kind, found[kind])
    save("load_peak", options, found)


if __name__ == "__main__":
    main()
