"""Reads whether an InternLM 3 has biases: all of a layer's matrices have, or none, which it says by two fields of two
names each."""

from __future__ import annotations

from tandem.worker.checkpoints.fields import Fields

_BIASES = ("qkv_bias", "attention_bias", "bias", "mlp_bias")  # the first two of attention, the others of all else


def with_biases_everywhere(config: Fields) -> Fields:
    """Returns the config with the names that others have. Refuses two that differ, as transformers does."""
    said = {key: config.boolean(key, False) for key in _BIASES if config.has(key)}
    of_attention, of_others = (any(said.get(key, False) for key in keys) for keys in (_BIASES[:2], _BIASES[2:]))
    for key, value in said.items():
        if value != (of_attention if key in _BIASES[:2] else of_others) or of_attention != of_others:
            names = ", ".join(f"{key} is {str(value).lower()}" for key, value in said.items())
            raise config.error(key, f"does not go with the others: {names}; either all are true or none is")
    return config.with_values(config.values | {"attention_bias": of_attention, "mlp_bias": of_others})
