"""Writes Meta's layout: `params.json` and one `consolidated.00.pth`.

The .pth is what `torch.save` writes, a zip archive with a pickle and one entry a storage, but written tensor by tensor:
`torch.save` would need all of them in memory.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tandem.worker.checkpoints.meta import intermediate_size_of, stored_name
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.row_order import neighbours_order
from tandem.worker.convert.pieces import ConvertError, Source, flush, write_text

_STORAGES = {
    torch.float32: torch.FloatStorage,
    torch.float16: torch.HalfStorage,
    torch.bfloat16: torch.BFloat16Storage,
}
_ALIGNMENT = 64  # bytes at which a storage begins, so that it can be used where it is mapped


def write_meta(source: Source, folder: Path) -> None:
    """Fills an empty folder. Raises ConvertError, CheckpointError, OSError."""
    config = source.checkpoint.config
    write_text(folder / "params.json", json.dumps(describe(config)) + "\n")
    shapes = {stored_name(name): shape for name, shape in config.tensor_shapes().items()}
    keys = {name: str(number) for number, name in enumerate(shapes)}
    tensors = {name: _Stored(keys[name], shape, source.dtype) for name, shape in shapes.items()}
    if config.tie_embeddings:  # Meta's own code expects both; they share their memory
        tensors["output.weight"] = tensors["tok_embeddings.weight"]
    with (folder / "consolidated.00.pth").open("w+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.writestr("archive/data.pkl", _pickled(tensors))
            archive.writestr("archive/byteorder", b"little")
            for name, tensor in source.tensors():
                size = math.prod(tensor.shape) * source.dtype.itemsize
                heads = len(tensor) // config.head_dim
                order = neighbours_order(heads, config.head_dim) if name.endswith((".q", ".k")) else None
                with archive.open(_entry(f"archive/data/{keys[stored_name(name)]}", size, file.tell()), "w") as entry:
                    for piece in source.pieces(name, tensor, source.dtype, order):
                        entry.write(piece.numpy().data)
            archive.writestr("archive/version", b"3\n")
        flush(file)


def describe(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of `params.json`. Raises ConvertError for what this layout cannot say."""
    if config.architecture != "llama" or config.qkv_bias or config.output_bias or config.qk_norm:
        with_biases = " with biases" if config.qkv_bias else ""
        raise ConvertError(f"Meta's layout is for Llama without biases; this is {config.architecture}{with_biases}")
    if config.head_dim * config.num_heads != config.hidden_size:
        raise ConvertError(
            f"Meta's layout has heads of dim / n_heads; this model's {config.num_heads} heads of {config.head_dim} "
            f"are not the hidden size {config.hidden_size}"
        )
    values: dict[str, Any] = {
        "dim": config.hidden_size,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "n_kv_heads": config.num_kv_heads,
        "vocab_size": config.vocab_size,
        "norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_seq_len": config.context_length,
        **_feed_forward(config),
    }
    scaling = config.rope_scaling
    if scaling is not None:
        if scaling.kind != "llama3" or (scaling.low_freq_factor, scaling.original_context_length) != (1.0, 8192):
            raise ConvertError(f"Meta's layout knows only the RoPE scaling of Llama 3; this model's is {scaling.kind}")
        values |= {
            "use_scaled_rope": True,
            "rope_scaling_factor": scaling.factor,
            "rope_high_freq_factor": scaling.high_freq_factor,
        }
    return values


def _feed_forward(config: ModelConfig) -> dict[str, Any]:
    """Returns `multiple_of` and `ffn_dim_multiplier` that give the feed-forward size: published ones where they do."""
    size = config.intermediate_size
    plain = intermediate_size_of(config.hidden_size, 1, None)
    # In between, so that rounding a product down gives the size.
    exact = (1, (size + 0.5) / plain if plain else 1.0)
    for multiple, multiplier in ((256, None), (1024, 1.3), (4096, 1.3), (256, 1.5), (256, 1.0), exact):
        if intermediate_size_of(config.hidden_size, multiple, multiplier) == size:
            return {"multiple_of": multiple} | ({} if multiplier is None else {"ffn_dim_multiplier": multiplier})
    raise ConvertError(f"no ffn_dim_multiplier of params.json gives the feed-forward size {size}")


class _Stored:
    """A tensor that `torch.load` finds in an entry of the archive."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.key, self.shape, self.dtype = key, shape, dtype

    def __reduce__(self) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
        strides = tuple(math.prod(self.shape[place + 1 :]) for place in range(len(self.shape)))
        numel = math.prod(self.shape)
        storage = _Storage(("storage", _STORAGES[self.dtype], self.key, "cpu", numel))
        return torch._utils._rebuild_tensor_v2, (storage, 0, self.shape, strides, False, OrderedDict())


class _Storage:
    def __init__(self, identity: tuple[Any, ...]) -> None:
        self.identity = identity


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        return value.identity if isinstance(value, _Storage) else None


def _pickled(tensors: dict[str, _Stored]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(tensors)
    return buffer.getvalue()


def _entry(name: str, size: int, at: int) -> zipfile.ZipInfo:
    """Makes an entry whose data begin at a multiple of the alignment, if its header begins at `at`."""
    entry = zipfile.ZipInfo(name)
    entry.file_size = size
    begins = at + 30 + len(name) + (20 if size * 1.05 > zipfile.ZIP64_LIMIT else 0)
    padding = -begins % _ALIGNMENT
    if padding:
        padding += _ALIGNMENT if padding < 4 else 0
        entry.extra = b"FB" + (padding - 4).to_bytes(2, "little") + b"Z" * (padding - 4)
    return entry
