"""Reads what files of llama.cpp's `gemma3n` say beyond those of other architectures, and where their tensors are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_further import Facts, of_layer, per_layer_inputs
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.beside_stream import Streams
from tandem.worker.checkpoints.model_parts.feed_forward import usual_sparsity

LAYER_NAMES = {
    "per_layer.gate": "inp_gate.weight",
    "per_layer.output": "proj.weight",
    "per_layer.norm": "post_norm.weight",
    "altup.norm": "altup_router_norm.weight",
    "altup.router": "altup_router.weight",
    "altup.predict": "altup_predict_coef.weight",
    "altup.correct": "altup_correct_coef.weight",
    "altup.scale": "altup_correct_scale.weight",
    "laurel.left": "laurel_l.weight",
    "laurel.right": "laurel_r.weight",
    "laurel.norm": "laurel_post_norm.weight",
}
# From the second stream on, their matrices in one tensor.
STREAM_NAMES = {"in": "altup_proj.weight", "out": "altup_unembd_proj.weight"}
KEYS = {"streams.count": "altup.num_inputs", "streams.active": "altup.active_idx"}
SPARSITY = "activation_sparsity_scale"  # standard deviations that a gate's numbers must be above their mean
_FIRST_STORING = 20  # layers that have keys of their own where no key says it


def with_one_size(fields: Fields) -> Fields:
    """Returns the keys of a file with the first layer's intermediate size where there is one for each."""
    size = fields.values.get("feed_forward_length")
    return fields.with_values(fields.values | {"feed_forward_length": size[0]}) if isinstance(size, list) else fields


def gemma3n(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Returns fields of `ModelConfig`. llama.cpp has several streams' number, and which gates are thinned, of the
    published models, whatever a file says; here it counts."""
    if config.rope_scaling is not None:
        raise fields.error("rope.scaling.type", "is set, which is not served with this architecture")
    layers = config.num_layers
    inner = tuple(of_layer(fields, "feed_forward_length", layers, layer) for layer in range(layers))
    left = facts.shapes.get("blk.0.laurel_l.weight", (0,))
    inputs = per_layer_inputs(fields, facts)
    if inputs is None:
        raise fields.error("embedding_length_per_layer_input", "is missing, or 0, which is not served here")
    streams = build(
        Streams,
        fields,
        KEYS,
        count=fields.integer("altup.num_inputs", 4),
        active=fields.integer("altup.active_idx", 0),
        laurel_rank=left[0],
    )
    return {
        "embedding_multiplier": config.hidden_size**0.5,
        "attention_multiplier": 1.0,
        "shared_layers": fields.integer("attention.shared_kv_layers", max(layers - _FIRST_STORING, 0)),
        "inner_sizes": inner if len(set(inner)) > 1 else (),
        "sparsity": _sparsity(fields, layers),
        "per_layer_inputs": inputs,
        "streams": streams,
    }


def deviations(share: float) -> float:
    """Returns how many standard deviations above the mean leave this share below."""
    return NormalDist().inv_cdf(share) if share else -math.inf


def _sparsity(fields: Fields, layers: int) -> tuple[float, ...]:
    said = fields.values.get(SPARSITY)
    if said is None:
        return usual_sparsity(layers)
    scales = said if isinstance(said, list) else [said] * layers  # one for all that are equal
    if len(scales) != layers or any(not isinstance(one, float) or math.isnan(one) for one in scales):
        raise fields.error(SPARSITY, f"must be a number for each of {layers} layers")
    shares = tuple(map(_share, scales))
    return shares if any(shares) else ()


def _share(scale: float) -> float:
    """Returns the share that is below so many standard deviations, of few digits where these say the same."""
    exact = NormalDist().cdf(scale)
    short = round(exact, 5)
    alike = 0 < short < 1 and math.isclose(deviations(short), scale, rel_tol=1e-6, abs_tol=1e-6)
    return short if alike or scale == -math.inf else exact
