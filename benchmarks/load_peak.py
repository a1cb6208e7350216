"""How much memory does the load of a model of 7 or 14 billion parameters in 4 bits take, and does it say how far it is?

python benchmarks/load_peak.py FOLDER --machine epyc2 [--shape 7b|14b] [--kinds Q4_0,Q4_K_M,GPTQ] [--layers 32] [--add]

writes each model there (4 or 8 GB), loads it, deletes it. Q4_K_M is Q4_K, and Q6_K in the output and, in every second
layer, in values and down; GPTQ has groups of 128 and no zeros, embedding and output of float16. `--add` keeps what was
measured of other kinds and shapes on the same day.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import add_output_flags, save, saved_today


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def kv(self) -> int:
        """Numbers that all heads' keys, or values, have together."""
        return self.hidden // self.heads * self.kv_heads


SHAPES = {"7b": Shape(32, 4096, 14336, 32, 8, 32000), "14b": Shape(48, 5120, 13824, 40, 8, 152064)}
BLOCKS = {"Q4_0": (32, 18), "Q4_K": (256, 144), "Q6_K": (256, 210), "F32": (1, 4)}  # numbers and bytes of one


def write_folder(path: Path, shape: Shape) -> None:
    """Writes a folder with the same matrices as GPTQ packs them."""
    from safetensors.numpy import save_file

    path.mkdir()
    config = {
        **{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": shape.hidden},
        **{"intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads},
        **{"num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary, "max_position_embeddings": 4096},
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
        return (random.standard_normal((shape.vocabulary, shape.hidden), np.float32) * 0.02).astype(np.float16)

    parts: list[dict[str, Any]] = [{"model.embed_tokens.weight": embedded()}, {"lm_head.weight": embedded()}]
    parts[0]["model.norm.weight"] = np.ones(shape.hidden, np.float16)
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        parts.append(
            {
                f"{block}.input_layernorm.weight": np.ones(shape.hidden, np.float16),
                f"{block}.post_attention_layernorm.weight": np.ones(shape.hidden, np.float16),
                **packed(f"{block}.self_attn.q_proj", shape.hidden, shape.hidden),
                **packed(f"{block}.self_attn.k_proj", shape.kv, shape.hidden),
                **packed(f"{block}.self_attn.v_proj", shape.kv, shape.hidden),
                **packed(f"{block}.self_attn.o_proj", shape.hidden, shape.hidden),
                **packed(f"{block}.mlp.gate_proj", shape.inner, shape.hidden),
                **packed(f"{block}.mlp.up_proj", shape.inner, shape.hidden),
                **packed(f"{block}.mlp.down_proj", shape.hidden, shape.inner),
            }
        )
    files: dict[str, str] = {}
    for number, part in enumerate(parts):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(part, path / file)
        files |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def write_file(path: Path, kind: str, shape: Shape) -> None:
    """Writes a model of such a shape, its blocks random."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocabulary, shape.hidden),
        "output.weight": (shape.vocabulary, shape.hidden),
    }
    for layer in range(shape.layers):
        sizes |= {
            f"blk.{layer}.attn_norm.weight": (shape.hidden,),
            f"blk.{layer}.attn_q.weight": (shape.hidden, shape.hidden),
            f"blk.{layer}.attn_k.weight": (shape.kv, shape.hidden),
            f"blk.{layer}.attn_v.weight": (shape.kv, shape.hidden),
            f"blk.{layer}.attn_output.weight": (shape.hidden, shape.hidden),
            f"blk.{layer}.ffn_norm.weight": (shape.hidden,),
            f"blk.{layer}.ffn_gate.weight": (shape.inner, shape.hidden),
            f"blk.{layer}.ffn_up.weight": (shape.inner, shape.hidden),
            f"blk.{layer}.ffn_down.weight": (shape.hidden, shape.inner),
        }
    sizes["output_norm.weight"] = (shape.hidden,)
    stored = {}
    more = {f"blk.{layer}.{name}.weight" for layer in range(1, shape.layers, 2) for name in ("attn_v", "ffn_down")}
    more = {"output.weight"} | (more if kind == "Q4_K_M" else set())
    kind = kind.removesuffix("_M")
    for name, dims in sizes.items():
        stored[name] = "F32" if len(dims) == 1 else "Q6_K" if name in more else kind
        size = int(np.prod(dims)) // BLOCKS[stored[name]][0] * BLOCKS[stored[name]][1]
        as_bytes = (*dims[:-1], size // int(np.prod(dims[:-1])))
        dtype = np.dtype(np.float32) if stored[name] == "F32" else np.dtype(np.uint8)
        wanted = None if stored[name] == "F32" else GGMLQuantizationType[stored[name]]
        writer.add_tensor_info(name, dims if wanted is None else as_bytes, dtype, size, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, dims in sizes.items():
        writer.write_tensor_data(numbers(stored[name], int(np.prod(dims))))
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
    from tandem.worker.engine.process.code_pages import release_code
    from tandem.worker.model.loading import load_transformer

    release_code()  # as an engine does
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
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--layers", type=int, help="default: as many as the shape has")
    parser.add_argument("--add", action="store_true", help="to the results of today")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(options.load)))
        return
    shape = SHAPES[options.shape]
    shape = replace(shape, layers=options.layers or shape.layers)
    found: dict[str, Any] = saved_today("load_peak", options.machine) if options.add else {}
    for kind in options.kinds.split(","):
        path = options.folder / (f"random-{options.shape}-{kind}" + ("" if kind == "GPTQ" else ".gguf"))
        try:
            if kind == "GPTQ":
                write_folder(path, shape)
            else:
                write_file(path, kind, shape)
            command = [sys.executable, __file__, str(options.folder), "--load", str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            name = f"{options.shape} {kind}"
            found[name] = json.loads(out.splitlines()[-1]) | {"layers": shape.layers}
        finally:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        print(name, found[name], flush=True)
    save("load_peak", options, found)


if __name__ == "__main__":
    main()
