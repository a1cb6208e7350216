"""How much memory does the load of a model of 7 billion parameters in 4 bits take, and does it say how far it is?

python benchmarks/load_peak.py FOLDER --machine epyc2 [--kinds Q4_0,Q4_K_M,GPTQ] [--layers 32]

writes each model there (4 GB), loads it, deletes it. Q4_K_M is Q4_K, and Q6_K in the output and, in every second layer,
in values and down; GPTQ has groups of 128 and no zeros, embedding and output of float16.

A process of its own loads the file. Its peak counts everything that is resident, pages of the mapped file included; it
is compared with the size of the file and with that of the weights once they are loaded, less what was there before (the
interpreter, torch and our own modules) and whole.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
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


def write_folder(path: Path, layers: int) -> None:
    """Writes a folder with the same matrices as GPTQ packs them."""
    from safetensors.numpy import save_file

    path.mkdir()
    kv = HIDDEN // HEADS * KV_HEADS
    config = {
        **{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": HIDDEN},
        **{"intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS},
        **{"num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 4096},
        **{"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": None, "hidden_act": "silu"},
        **{"tie_word_embeddings": False, "torch_dtype": "float16"},
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    }
    (path / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)

    def packed(name: str, rows: int, columns: int) -> dict[str, Any]:
        return {
            f"{name}.qweight": random.integers(-(2**31), 2**31, (columns // 8, rows), np.int32),
            f"{name}.qzeros": np.full((columns // 128, rows // 8), 0x77777777, np.int32),  # zeros of 8, less 1
            f"{name}.scales": np.full((columns // 128, rows), 1e-4, np.float16),
        }

    def embedded() -> Any:
        return (random.standard_normal((VOCABULARY, HIDDEN), np.float32) * 0.02).astype(np.float16)

    parts: list[dict[str, Any]] = [{"model.embed_tokens.weight": embedded()}, {"lm_head.weight": embedded()}]
    parts[0]["model.norm.weight"] = np.ones(HIDDEN, np.float16)
    for layer in range(layers):
        block = f"model.layers.{layer}"
        parts.append(
            {
                f"{block}.input_layernorm.weight": np.ones(HIDDEN, np.float16),
                f"{block}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float16),
                **packed(f"{block}.self_attn.q_proj", HIDDEN, HIDDEN),
                **packed(f"{block}.self_attn.k_proj", kv, HIDDEN),
                **packed(f"{block}.self_attn.v_proj", kv, HIDDEN),
                **packed(f"{block}.self_attn.o_proj", HIDDEN, HIDDEN),
                **packed(f"{block}.mlp.gate_proj", INNER, HIDDEN),
                **packed(f"{block}.mlp.up_proj", INNER, HIDDEN),
                **packed(f"{block}.mlp.down_proj", HIDDEN, INNER),
            }
        )
    files: dict[str, str] = {}
    for number, part in enumerate(parts):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(part, path / file)
        files |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def write_file(path: Path, kind: str, layers: int) -> None:
    """Writes a model of Mistral 7B's shape, its blocks random."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
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
    for layer in range(layers):
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
    more = {f"blk.{layer}.{name}.weight" for layer in range(1, layers, 2) for name in ("attn_v", "ffn_down")}
    more = {"output.weight"} | (more if kind == "Q4_K_M" else set())
    kind = kind.removesuffix("_M")
    for name, shape in shapes.items():
        stored[name] = "F32" if len(shape) == 1 else "Q6_K" if name in more else kind
        size = int(np.prod(shape)) // BLOCKS[stored[name]][0] * BLOCKS[stored[name]][1]
        as_bytes = (*shape[:-1], size // int(np.prod(shape[:-1])))
        dtype = np.dtype(np.float32) if stored[name] == "F32" else np.dtype(np.uint8)
        wanted = None if stored[name] == "F32" else GGMLQuantizationType[stored[name]]
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
    """Loads the file in this process, which has imported what an engine has."""
    from tandem.worker.engine.process.torch_import import import_torch

    torch = import_torch("cpu")
    importlib.import_module("tandem.worker.engine.process.build")
    from tandem.worker.checkpoints import open_checkpoint
    from tandem.worker.model.loading import load_transformer

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started = resident("VmRSS"), time.monotonic()
    shares: list[float] = []
    checkpoint = open_checkpoint(path)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, lambda done, whole: shares.append(done / whole))
    whole = resident("VmHWM")
    peak, after = whole - before, resident("VmRSS") - before
    weights = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
    return {
        "file_bytes": size,
        "weight_bytes": weights,
        "peak_bytes": peak,
        "resident_after_bytes": after,
        "peak_over_file": round(peak / size, 3),
        "peak_over_weights": round(peak / weights, 3),
        "before_bytes": before,
        "whole_peak_over_file": round(whole / size, 3),
        "progress_calls": len(shares),
        "largest_step_of_progress": round(max(b - a for a, b in zip([0.0, *shares], shares, strict=False)), 4),
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_output_flags(parser)
    parser.add_argument("--kinds", default="Q4_0,Q4_K_M,GPTQ")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(options.load)))
        return
    found: dict[str, Any] = {}
    for kind in options.kinds.split(","):
        path = options.folder / (f"random-7b-{kind}" + ("" if kind == "GPTQ" else ".gguf"))
        try:
            if kind == "GPTQ":
                write_folder(path, options.layers)
            else:
                write_file(path, kind, options.layers)
            command = [sys.executable, __file__, str(options.folder), "--load", str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[kind] = json.loads(out.splitlines()[-1])
        finally:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        print(kind, found[kind])
    save("load_peak", options, found)


if __name__ == "__main__":
    main()
