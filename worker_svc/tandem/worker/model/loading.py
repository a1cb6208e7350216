"""Loads the weights of a checkpoint into a transformer, in the form that this machine computes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from tandem.worker.checkpoints.adapters import LowRank
from tandem.worker.checkpoints.checkpoint import DTYPES, Checkpoint, CheckpointError
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.adapters import add_adapter
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.head import Head
from tandem.worker.model.linear import HeadLinear, panels_for
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.operations import Operations, TorchOperations
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.weights import MadeOf, WeightFiller


def load_transformer(
    checkpoint: Checkpoint,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
    *,
    config: ModelConfig | None = None,
    operations: Operations | None = None,
    quantization: MadeOf = "stored",
    ranks: Ranks = ALONE,
    adapters: Sequence[Mapping[str, LowRank]] = (),
) -> Transformer:
    """Loads a model with the checkpoint's weights, in `dtype` on `device`.

    `progress(bytes done, bytes in all)` is called after each tensor. `config` serves the weights with other constants,
    for example another context length; `operations` computes by other kernels than torch's. `quantization` is what
    matrices are turned into; "stored" keeps quantized ones as they are, None makes plain ones of them. Embedding and
    output get int8 for int4 and stay plain for fp8; a router is never quantized. With several `ranks`, the model is
    this one's part of it, without `adapters`, which stay beside it. Raises CheckpointError.
    """
    whole = config or checkpoint.config
    # Where products are compiled, a CPU keeps matrices and the cache in the dtype, and all else in float32.
    device = torch.device(device)
    operations, panels = operations or cpu_operations(), None
    by_processor = device.type == "cpu" and isinstance(operations, TorchOperations)
    if by_processor:
        panels = panels_for(dtype, lambda: _mostly_quantized(checkpoint, quantization))
    computed = torch.float32 if panels is not None else dtype
    model = (Head if whole.joins else Transformer)(whole, device, computed, operations, ranks)
    destinations = model.destinations()
    compiled = by_processor and native.available()
    made = model.operations.quantized_weight
    filler = WeightFiller(device, dtype, quantization, made, panels=panels, compiled=compiled)
    done = 0
    for name, source in checkpoint.tensors():
        target = destinations.pop(name)
        try:
            part, row = ranks.part(name, whole), target.row
            for rows in part.rows or (slice(None),):
                ours = source[rows] if part.rows else source
                if part.vanishes:
                    assert isinstance(ours, torch.Tensor)
                    ours = torch.zeros_like(ours)
                filler.fill(target.module, row, ours, checkpoint.release, part.columns, least_bits=_least_bits(name))
                row += len(ours)
        except OverflowError as error:
            raise CheckpointError(f"{checkpoint.path}: {name} has {error}") from error
        except ValueError as error:
            hint = "use fewer ranks (tensor_parallel), or quantize none"
            raise CheckpointError(f"{checkpoint.path}: {name}: {error}; {hint}") from error
        done += source.nbytes
        if progress is not None:
            progress(min(done, checkpoint.total_bytes), checkpoint.total_bytes)  # what is made plain has more
    if destinations:
        raise CheckpointError(f"{checkpoint.path}: {', '.join(destinations)} did not come")
    if model.config.tie_embeddings:
        model.output.share(model.embedding.stored)
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.join()
        elif isinstance(module, HeadLinear):
            module.joined = model.operations.join_heads(module)
    for number, changes in enumerate(adapters):
        add_adapter(model, number, changes, WeightFiller(device, dtype, None, panels=panels, compiled=compiled))
    model.multiply_by(model.operations.products[0])
    return model


def _mostly_quantized(checkpoint: Checkpoint, quantization: MadeOf) -> bool:
    """Tells whether the layers' matrices will be small integers; the first of them decides."""
    if quantization != "stored":
        return isinstance(quantization, Quantization)
    if checkpoint.stored_as.keys() <= DTYPES.keys():
        return False  # nothing but plain numbers, and looking at a tensor may join it from several files
    first = next(source for name, source in checkpoint.tensors() if name.endswith(".output"))
    return not isinstance(first, torch.Tensor) and (first[:1].float8() or first[:1].grouped()) is not None


_STATE_GATES = (
    "delta_net.a",
    "delta_net.b",
    "kimi_delta.b",
    "kimi_delta.decay",
    "kimi_delta.decay_in",
    "kimi_delta.decay_out",
    "mamba.dt",
)


def _least_bits(name: str) -> int:
    """Returns the fewest bits: a router, what an indexer's heads and several streams weigh, the gates of a state that
    outlives thousands of tokens, and the output among a whole vocabulary, decide by small differences; a learned
    position is looked up."""
    if name.endswith(("router", "index_weights", "hyper", *_STATE_GATES)) or name == "positions":
        return 32
    return 8 if name in ("embedding", "output", "per_layer.embedding") else 4
