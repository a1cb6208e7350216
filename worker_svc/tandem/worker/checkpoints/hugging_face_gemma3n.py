"""Reads what the text models of Gemma 3n say beyond other architectures."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs, Streams
from tandem.worker.checkpoints.model_parts.feed_forward import usual_sparsity
from tandem.worker.checkpoints.model_parts.limits import LIMITS

STREAM_KEYS = {
    "streams.count": "altup_num_inputs",
    "streams.active": "altup_active_idx",
    "streams.laurel_rank": "laurel_rank",
}
_INPUT_KEYS = {
    "per_layer_inputs.size": "hidden_size_per_layer_input",
    "per_layer_inputs.vocab_size": "vocab_size_per_layer_input",
}
_SIZE, _SIZES = "intermediate_size", "intermediate_sizes"  # the second one: as `with_one_size` calls it


def with_one_size(config: Fields) -> Fields:
    """Returns the fields with one intermediate size where all layers have the same, and beside them where they are cut
    out of a larger model each by its own."""
    sizes = config.values.get(_SIZE)
    if not isinstance(sizes, list):
        return config
    layers = config.integer("num_hidden_layers")
    if len(sizes) != layers or not sizes or any(type(size) is not int for size in sizes):
        raise config.error(_SIZE, f"must be one number, or one for each of the {layers} layers")
    return config.with_values(config.values | {_SIZE: sizes[0], _SIZES: sizes})


def gemma3n(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    sizes = config.values.get(_SIZES, ())
    return {
        "embedding_multiplier": max(config.integer("hidden_size"), 1) ** 0.5,
        "shared_layers": config.integer("num_kv_shared_layers", 15),
        "inner_sizes": tuple(sizes) if len(set(sizes)) > 1 else (),
        "sparsity": _sparsity(config),
        "per_layer_inputs": build(
            PerLayerInputs,
            config,
            _INPUT_KEYS,
            size=config.integer("hidden_size_per_layer_input", 256),
            vocab_size=config.integer("vocab_size_per_layer_input", 262144),
        ),
        "streams": build(
            Streams,
            config,
            STREAM_KEYS,
            count=config.integer("altup_num_inputs", 4),
            active=config.integer("altup_active_idx", 0),
            laurel_rank=config.integer("laurel_rank", 64),
            scaled=config.boolean("altup_correct_scale", True),
        ),
    }


def _sparsity(config: Fields) -> tuple[float, ...]:
    key, layers = "activation_sparsity_pattern", config.integer("num_hidden_layers")
    said = config.values.get(key)
    if said is None:
        return usual_sparsity(min(layers, LIMITS["num_layers"]))
    if not isinstance(said, list) or len(said) != layers:
        raise config.error(key, f"must be a number for each of the {layers} layers")
    numbers = config.with_values({f"{key}[{layer}]": share for layer, share in enumerate(said)})
    shares = tuple(numbers.number(name) for name in numbers.values)
    return shares if any(shares) else ()
