"""Finds the text model in one that sees or hears, too: its fields are in `text_config`, its tensors under
`model.language_model.` or `language_model.`. What sees and hears is not loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_fields import WRAPPER
from tandem.worker.checkpoints.known_fields import check_fields

# `mtp`: the head of `hugging_face_heads.py`.
_NOT_LOADED = re.compile(
    r"(mtp|visual|vision_model|multi_modal_projector|model\.(visual|vision_tower|embed_vision|audio_tower|embed_audio))\..+"
)


def text_config(config: Fields, wrapped: Mapping[tuple[str, str], str]) -> Fields:
    """Returns the fields of the text model where `config` wraps one; `wrapped` says by model_type and class of such
    models the class of their text models."""
    named = (config.values.get("model_type"), config.values.get("architectures"))
    found = next((name for (kind, name) in wrapped if named in ((kind, [name]), (kind, None), (None, [name]))), None)
    if found is None or not config.has("text_config"):
        return config
    check_fields(config, WRAPPER)
    text = config.object("text_config")
    text.values = text.values | {"architectures": [next(ours for (_, name), ours in wrapped.items() if name == found)]}
    for key in ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"):
        if key in config.values:
            text.values.setdefault(key, config.values[key])
    return text


def text_name(stored: str) -> str | None:
    """Returns a stored tensor's name in the text model; None if it is no part of that."""
    if _NOT_LOADED.fullmatch(stored):
        return None
    return re.sub(r"^language_model\.", "", re.sub(r"^model\.language_model\.", "model.", stored))
