"""Reads fields of EXAONE that others call otherwise: those of EXAONE 3 and 3.5, and which layers of an EXAONE 4 have a
window, which its published files say by letters, too."""

from __future__ import annotations

import re

from tandem.worker.checkpoints.fields import Fields

_PATTERN = "sliding_window_pattern"
_USUAL = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"}


def with_usual_names(config: Fields) -> Fields:
    """Returns the config of an EXAONE 3 with the names that others have. Refuses one by both names that differ."""
    return config.renamed(_USUAL)


def with_pattern(config: Fields) -> Fields:
    """Returns the config with a number for the letters: the last of so many layers has no window. Layers that are
    listed win."""
    pattern = config.values.get(_PATTERN)
    if config.has("layer_types"):
        return config.with_values({key: value for key, value in config.values.items() if key != _PATTERN})
    if not isinstance(pattern, str):
        return config
    if not re.fullmatch("L{0,4095}G", pattern):
        problem = f"is {pattern[:60]!r}, but layers with a window (L) must end with one without (G)"
        raise config.error(_PATTERN, problem)
    return config.with_values({**config.values, _PATTERN: len(pattern)})
