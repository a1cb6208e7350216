"""Reads what files of Arcee's Trinity (AFMoE) say in words of their own."""

from __future__ import annotations

from tandem.worker.checkpoints.fields import Fields

_USUAL = {"global_attn_every_n_layers": "sliding_window_pattern", "num_dense_layers": "first_k_dense_replace"}


def afmoe(config: Fields) -> Fields:
    """Returns the config with the names that others have: which layers have no window, how many have no experts, and
    that embeddings are multiplied by the root of the width."""
    if "sliding_window" in config.values and not config.has("sliding_window"):
        raise config.error("sliding_window", "is null, but layers that rotate are those with a window")
    usual = config.renamed(_USUAL)
    if not usual.boolean("mup_enabled", False):
        return usual
    return usual.with_values(usual.values | {"embedding_multiplier": max(config.integer("hidden_size"), 1) ** 0.5})
