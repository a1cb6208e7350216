"""Finds the text model in one that sees or hears, too: its fields and its tensors. What sees and hears is not loaded.

text model            its head
model.language_model  lm_head                 as transformers has it now
language_model.model  language_model.lm_head  as many were published
model                 lm_head                 Qwen2-VL, Phi-4
model.text_model      lm_head                 Idefics 3
thinker.model         thinker.lm_head         Qwen2.5-Omni, Qwen3-Omni
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.worker.checkpoints.checkpoint import CheckpointError, StoredTensor
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture
from tandem.worker.checkpoints.hugging_face_fields import CONFIG
from tandem.worker.checkpoints.hugging_face_text_models import TEXT_MODELS, OverHeads, TextModel
from tandem.worker.checkpoints.hugging_face_wrappers import LEFT_OUT, REFUSED, SEEN_AND_HEARD, WRAPPERS, Wrapper
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, check_fields

_NOT_LOADED = re.compile(
    rf"(thinker\.)?(model\.)?({'|'.join(LEFT_OUT)})(\..+)?"
    r"|.+\.lora_[AB]\.(speech|vision)\.weight"  # Phi-4, which adds them where there is something to hear or to see
)
_TEXT = re.compile(r"(?:model\.)?(?:language_model|text_model)\.|thinker\.")
_TIED, _QUANTIZED, _ROPE = "tie_word_embeddings", "quantization_config", ("rope_parameters", "rope_scaling")
_SECTIONS = ("mrope_section", "mrope_interleaved", "interleaved", "xdrope_section")
_TOP = ("model.", "lm_head.", "backbone.", "transformer.")  # what a text model of its own begins with


def wrapper_of(config: Fields) -> Wrapper | None:
    """Returns what model around a text model `config` describes, by model_type and class; None for a text model."""
    kind, classes = config.values.get("model_type"), config.values.get("architectures")
    for name, why in REFUSED.items():
        if classes == [name]:
            raise config.error("architectures", f"{name} is not served: it {why}")
    for each in WRAPPERS:
        kinds = (each.model_type, *each.also_named)
        named = [[name] for name in (each.class_name, *each.also_spelled)]
        if (kind in kinds and (not classes or classes in named)) or (kind is None and classes in named):
            return each
    return None


def text_fields(config: Fields) -> Fields:
    """Returns the fields of the text model where `config` is that of a model that sees, too; else `config`."""
    wrapper = wrapper_of(config)
    if wrapper is None:
        return config
    ways = [way for where in wrapper.where if (way := _way(config, where))]
    if len(ways) > 1:
        raise config.error(wrapper.where[1], f"is there beside {wrapper.where[0]}; one of them is expected")
    around = ways[0] if ways else [config]
    apart = len(around) > 1
    if not (apart or wrapper.flat):
        raise config.error(wrapper.where[0], f"is missing, which says what the text model of {wrapper.class_name} is")
    text = around[-1] if apart else config
    kind = text.values.get("model_type") if apart else None
    model = _text_model(text, wrapper, kind or wrapper.text)
    known = dict.fromkeys(CONFIG[model.architecture], NEUTRAL) | SEEN_AND_HEARD
    known |= dict.fromkeys(".".join(wrapper.where).split("."), USED)
    for fields in around[:-1]:  # what the text model knows counts where its own fields are
        check_fields(fields, known)
    beside = SEEN_AND_HEARD | wrapper.text_fields
    check_fields(text.with_values({key: value for key, value in text.values.items() if key in beside}), beside)
    own = {key: value for key, value in text.values.items() if key not in beside}
    return text.with_values(_values(text.with_values(own), around, model))


def _way(config: Fields, where: str) -> list[Fields]:
    """Returns the objects on the way to one, it the last; nothing where it is not there."""
    found = [config]
    for key in where.split("."):
        if not found[-1].has(key):
            return []
        found.append(found[-1].object(key))
    return found


def wrapper_around(architecture: Architecture) -> Wrapper | None:
    """Returns the wrapper of which this is the only text model: its files may have the names of the whole."""
    return next((each for each in WRAPPERS if each.alone and each.text == architecture.name), None)


def text_names(path: Path, stored: Iterable[str], wrapper: Wrapper | None) -> dict[str, str]:
    """Returns the names of stored tensors by what they are called in a file of the text model alone. Without a wrapper
    these are the same. Raises CheckpointError where two are one."""
    if wrapper is None:
        return {name: name for name in stored}
    names: dict[str, str] = {}
    for name in stored:
        if (text := text_name(name)) is not None:
            other = names.setdefault(text, name)
            if other != name:
                raise CheckpointError(f"{path}: tensors {other} and {name} are one of the text model")
    return names


def with_stored_experts(architecture: Architecture, config: Fields, stored: Mapping[str, StoredTensor]) -> Architecture:
    """Returns the architecture with experts as the files have them: apart, or all of a layer in two tensors, as in
    Qwen3-VL, which was published with `[in, out]` of each and is saved by transformers with `[out, in]`."""
    module, apart, _ = architecture.layer_names.get("experts.gate", "").partition("{}.")
    both, down = f"{module}gate_up_proj", f"{module}down_proj"
    names = [name for name in stored if name.endswith((f".{both}", f".{down}"))]
    if not apart or architecture.hybrid or not names:
        return architecture
    size = "moe_intermediate_size" if architecture.experts is None else architecture.experts.size
    width, inner = config.integer("hidden_size"), config.integer(size, 0)
    usual = {both: (2 * inner, width), down: (width, inner)}
    turned = any(stored[name].shape[1:] != usual[both if name.endswith(both) else down] for name in names)
    stacked = {"experts.gate": both, "experts.up": both, "experts.down": down}
    return replace(architecture, layer_names={**architecture.layer_names, **stacked}, transposed_experts=turned)


def text_name(stored: str) -> str | None:
    """Returns what a tensor of a model that sees or hears is called in a file of the text model alone; None if it is of
    what is not loaded."""
    if _NOT_LOADED.fullmatch(stored):
        return None
    name = stored.replace(".base_layer.", ".")
    begins = _TEXT.match(name)
    if begins is None:
        return name
    rest = name[begins.end() :]
    return rest if rest.startswith(_TOP) else f"model.{rest}"


def _text_model(text: Fields, wrapper: Wrapper, kind: Any) -> TextModel:
    usual = TEXT_MODELS.get(wrapper.text) or TextModel(wrapper.text)
    if wrapper.alone:
        if kind not in (wrapper.text, usual.architecture, wrapper.model_type):  # the last in some that were saved again
            raise text.error("model_type", f"{str(kind)[:60]!r} is not what {wrapper.class_name} has, {wrapper.text!r}")
        return usual
    found = TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    if found is not None:
        return found
    name = next((each.name for each in ARCHITECTURES.values() if kind in (each.name, *each.also_named)), None)
    if name is None:
        served = ", ".join(dict.fromkeys((*ARCHITECTURES, *TEXT_MODELS)))
        raise text.error("model_type", f"{str(kind)[:60]!r} is not served; served are {served}")
    return TextModel(name)


def _values(text: Fields, around: Sequence[Fields], model: TextModel) -> dict[str, Any]:
    """Returns what a file of the text model alone would say; `around`: the objects that it stands in, it the last."""
    values = dict(text.values)
    for fields in reversed(around[:-1]):
        for key in ("bos_token_id", "eos_token_id"):
            if key in fields.values:
                values.setdefault(key, fields.values[key])
        beside, among = fields.values.get(_QUANTIZED), values.get(_QUANTIZED)
        if beside is not None and among is not None and beside != among:
            raise text.error(_QUANTIZED, "and that of the whole contradict each other; one of them is expected")
        values[_QUANTIZED] = beside if among is None else among
    said = [one for each in (text, *around[:-1]) if (one := each.values.get(_TIED)) is not None]
    if said:  # true of either counts, as in transformers
        values[_TIED] = next((one for one in said if one is True), said[0])
    ropes = {key: text.object(key).values for key in _ROPE if text.has(key)}
    if model.three_positions:
        values |= {key: _one_position(rope) for key, rope in ropes.items()}
    stated = set(values).union(*ropes.values()) | ({"num_experts"} if text.has("num_local_experts") else set())
    values |= {key: usual for key, usual in model.defaults.items() if key not in stated and usual is not OverHeads}
    for key in (key for key, usual in model.defaults.items() if usual is OverHeads and values.get(key) is None):
        fields = text.with_values(values)
        values[key] = fields.integer("hidden_size") // max(fields.integer("num_attention_heads"), 1)
    architecture = ARCHITECTURES[model.architecture]
    return values | {"model_type": architecture.name, "architectures": [architecture.class_name]}


def _one_position(rope: dict[str, Any]) -> dict[str, Any]:
    """Returns RoPE parameters without how three positions share the pairs."""
    values = {key: value for key, value in rope.items() if key not in _SECTIONS}
    for key in ("type", "rope_type"):
        for theirs, plain in (("mrope", "default"), ("xdrope", "dynamic")):
            if values.get(key) == theirs:
                values[key] = plain
    return values
