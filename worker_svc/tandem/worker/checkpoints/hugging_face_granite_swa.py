"""Reads by what each layer of a Granite with windows rotates, which its files list: theta, or 0 where it does not."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields


def granite_swa(config: Fields, rope: Fields, windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`. Layers that rotate may differ by whether they have a window, not otherwise."""
    key = "layer_rope_theta"
    thetas = config.values.get(key)
    if thetas is None:
        return {}
    layers = config.integer("num_hidden_layers")
    if not isinstance(thetas, list) or len(thetas) != layers or any(type(one) not in (int, float) for one in thetas):
        raise config.error(key, f"must be a list of a number for each of the {layers} layers")
    unrotated = tuple(layer for layer, theta in enumerate(thetas) if not theta)
    of_windows, of_others = (
        {float(theta) for layer, theta in enumerate(thetas) if theta and any(windows[layer : layer + 1]) is with_window}
        for with_window in (True, False)
    )
    if len(of_windows) > 1 or len(of_others) > 1:
        raise config.error(key, "differ among layers that have a window, or among those that have none")
    found: dict[str, Any] = {"unrotated_layers": unrotated}
    if of_windows and of_others and of_windows != of_others:
        if rope.text("rope_type", rope.text("type", "default")) != "default":
            raise config.error(key, "differ, which is served without scaling alone")
        return found | {"rope_theta": of_others.pop(), "window_rope_theta": of_windows.pop()}
    both = of_windows | of_others
    return found | ({"rope_theta": both.pop()} if both else {})
