"""Times a layer's gated delta rule on a GPU, from its projections on, in the sizes of Qwen3.6-35B-A3B."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu_parts import Scale, median_seconds
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.states import StateCache, StatePlan, StateShape, StateWork

KERNEL, JOURNAL = 4, 9


def states(ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """A step of decodes, each of which repeats a token, as decodes do; and a prefill of one sequence."""
    device, (key_heads, value_heads), dim = scale.device, scale.delta_heads, scale.head_dim
    sizes = DeltaNet((0,), key_heads, value_heads, dim, dim, KERNEL)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device)

    rule = DeltaRule(
        sizes, 1e-6, numbers(KERNEL, sizes.channels), -numbers(value_heads).exp(), numbers(value_heads), numbers(dim)
    )
    cache = StateCache(StateShape(sizes, scale.sequences, JOURNAL), device)
    operations = TritonOperations(1)

    def timed(works: list[tuple[int, int, int, StateWork]]) -> float:
        rows = sum(length for _, length, _, _ in works)
        mixed = numbers(rows, sizes.channels + sizes.size).to(scale.dtype)
        gates = numbers(rows, sizes.factors).to(scale.dtype)
        moves = operations.plan_states(StatePlan(works, cache), cache.device)
        return median_seconds(lambda: moves.recur(rule, 0, mixed, gates), scale)

    decode = timed([(row, 1, 8, StateWork(row, 7, 8)) for row in range(scale.sequences)])
    prefill = timed([(0, scale.prefill, 0, StateWork(0, 0, scale.prefill))])
    moved = 2 * scale.sequences * cache.recurrent[0][0].nbytes
    return {
        "decode": {"seconds": decode, "bandwidth_share": moved / decode / ceiling["copy_bytes_per_second"]},
        "prefill": {"seconds": prefill, "seconds_per_token": prefill / scale.prefill},
    }
