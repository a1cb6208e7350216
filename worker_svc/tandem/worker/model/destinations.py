"""Where the tensors of a checkpoint go: a module's weight, from one of its rows on."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.mlp import XIELU_CONSTANTS
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.linear import Bias, Linear
from tandem.worker.model.mixer import Constants, Mixer
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.norms import LayerNorm, RMSNorm
from tandem.worker.model.weights import Embedding


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a tensor of a checkpoint goes: a module's weight, from one of its rows on."""

    module: RMSNorm | LayerNorm | Embedding | Linear | Bias | Constants
    row: int


def of_mixer(mixer: Mixer, output: Linear) -> dict[str, Destination]:
    """Returns where those of what a layer has instead of attention go, and of its output matrix."""
    places = {part: Destination(module, row) for part, (module, row) in mixer.destinations().items()}
    places["output"] = Destination(output, 0)
    if output.bias is not None:
        places["output_bias"] = Destination(output.bias, 0)
    return {f"{mixer.name}.{part}": place for part, place in places.items()}


def of_experts(experts: MixtureOfExperts) -> dict[str, Destination]:
    """Returns where those of a router, its experts and what stands beside them go."""
    places = {"router": Destination(experts.router, 0)}
    if experts.router.bias is not None:
        places["router_logit_bias"] = Destination(experts.router.bias, 0)
    if experts.router_bias is not None:
        places["router_bias"] = Destination(experts.router_bias, 0)
    if experts.table is not None:
        places["router_table"] = Destination(experts.table, 0)
    if experts.weights is not None:
        places["expert_weights"] = Destination(experts.weights, 0)
    if experts.shared is not None:
        places |= of_ordinary("shared", experts.shared)
    for name, matrix in (("into_experts", experts.into_experts), ("out_of_experts", experts.out_of_experts)):
        if matrix is not None:
            places[name] = Destination(matrix, 0)
            if matrix.bias is not None:
                places[f"{name}_bias"] = Destination(matrix.bias, 0)
    if experts.shared_router is not None:
        places["shared_router"] = Destination(experts.shared_router, 0)
    for number, expert in enumerate(experts.experts):
        assert isinstance(expert, FeedForward | UngatedFeedForward)
        places |= of_ordinary(f"experts.{number}", expert)
    return places


def of_norm(name: str, norm: RMSNorm | LayerNorm) -> dict[str, Destination]:
    """Returns where a norm's weight goes, unless it has none of its own, and its bias if it has one."""
    if isinstance(norm, LayerNorm) and not norm.comes:
        return {}
    places = {name: Destination(norm, 0)}
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        places[f"{name}_bias"] = Destination(norm.bias, 0)
    return places


def of_ordinary(name: str, layer: FeedForward | UngatedFeedForward) -> dict[str, Destination]:
    """Returns where those of a feed-forward part without experts, or of one expert, go."""
    rows = {"gate": 0, "up": layer.intermediate_size} if isinstance(layer, FeedForward) else {"up": 0}
    places = {f"{name}.{part}": Destination(layer.first, row) for part, row in rows.items()}
    places[f"{name}.down"] = Destination(layer.down, 0)
    if isinstance(layer, UngatedFeedForward) and layer.constants is not None:
        places |= {f"{name}.{part}": Destination(layer.constants, row) for row, part in enumerate(XIELU_CONSTANTS)}
    if layer.first.bias is not None and layer.down.bias is not None:
        places |= {f"{name}.{part}_bias": Destination(layer.first.bias, row) for part, row in rows.items()}
        places[f"{name}.down_bias"] = Destination(layer.down.bias, 0)
    return places
