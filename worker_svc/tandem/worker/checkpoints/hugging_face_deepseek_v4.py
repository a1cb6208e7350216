"""Reads what DeepSeek-V4 says in words of its own: what each layer attends to, two ways to rotate, several streams, and
layers that have a table of who is chosen among experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.hugging_face_fields.rope import ROPE
from tandem.worker.checkpoints.known_fields import USED, check_fields
from tandem.worker.checkpoints.model_parts.compression import Compression, LayerKind
from tandem.worker.checkpoints.model_parts.hyper_connections import HyperConnections
from tandem.worker.checkpoints.model_parts.limits import LIMITS

KEYS = {
    "compression.kinds": "layer_types",
    "compression.window": "sliding_window",
    "compression.sparse_every": "compress_rates",
    "compression.heavy_every": "compress_rates",
    "compression.rotated": "partial_rotary_factor",
    "compression.query_rank": "q_lora_rank",
    "compression.groups": "o_groups",
    "compression.group_rank": "o_lora_rank",
    "compression.index_heads": "index_n_heads",
    "compression.index_size": "index_head_dim",
    "compression.most": "index_topk",
    "hyper.count": "hc_mult",
    "hyper.rounds": "hc_sinkhorn_iters",
    "hyper.eps": "hc_eps",
}
LAYER_TYPES: Mapping[LayerKind, str] = {
    "window": "sliding_attention",
    "sparse": "compressed_sparse_attention",
    "heavy": "heavily_compressed_attention",
}
_KINDS = {name: kind for kind, name in LAYER_TYPES.items()}
_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}  # tokens of an entry, unless said
_OLD_RATES = {"compressed_sparse_attention": "compress_rate_csa", "heavily_compressed_attention": "compress_rate_hca"}
_OLD_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
CHOICES = ("hash_moe", "moe")  # of experts: by a table, by scores
_WAYS = ("main", "compress")
_HEAD, _ROTATED = 512, 64  # numbers of a head, and of these that rotate, unless said


def with_one_rope(config: Fields) -> Fields:
    """Returns the config with RoPE parameters of the layers that have entries alone, and theta of the others as
    `window_rope_theta`; how many numbers of a head rotate is `qk_rope_head_dim` in it."""
    head = config.integer("head_dim", _HEAD)
    if head < 1:
        raise config.error("head_dim", f"must be at least 1, but is {head}")
    new, old = config.object("rope_parameters"), config.object("rope_scaling")
    if new.values and old.values and new.values != old.values:
        raise config.error("rope_parameters", "and rope_scaling contradict each other; one of them is expected")
    said = new if new.values else old
    by_way = set(_WAYS) & said.values.keys()
    rotated, theta, parameters = (_said_by_way if by_way else _said_once)(config, said, head)
    parameters.pop("truncate", None)  # transformers looks for it beside both ways, where it may not be, and finds none
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise said.error("rope_type", f"{str(kind)[:60]!r} is not served; served are default, yarn")
    stated = config.integer("qk_rope_head_dim", rotated)
    if rotated < 2 or rotated % 2:
        key = "qk_rope_head_dim" if config.has("qk_rope_head_dim") else "partial_rotary_factor"
        raise config.error(key, f"must make an even number of a head's rotate, but makes {rotated}")
    if stated != rotated:
        raise config.error(
            "qk_rope_head_dim", f"is {stated}, but partial_rotary_factor makes {rotated} of a head rotate"
        )
    values = {"num_key_value_heads": 1, "intermediate_size": config.integer("moe_intermediate_size")} | config.values
    values |= {"rope_parameters": parameters, "rope_scaling": None, "rope_theta": None, "partial_rotary_factor": None}
    return config.with_values(values | {"qk_rope_head_dim": rotated, "window_rope_theta": theta})


def _said_once(config: Fields, said: Fields, head: int) -> tuple[int, float, dict[str, Any]]:
    """Returns how many of a head's numbers rotate, theta of layers without entries, and the others' parameters, where
    parameters are those of both but for theta."""
    theta = config.number("rope_theta", 10000.0)
    among = said.number("rope_theta", theta)
    if among != theta:
        raise said.error("rope_theta", f"is {among:g}, but rope_theta beside it is {theta:g}")
    parameters = said.values | {"rope_theta": config.number("compress_rope_theta", 160000.0)}
    if parameters.get("rope_type", parameters.get("type")) == "yarn":
        parameters.setdefault("attention_factor", 1.0)
    parameters.pop("partial_rotary_factor", None)
    return int(head * _share(config, head)), theta, parameters


def _said_by_way(config: Fields, said: Fields, head: int) -> tuple[int, float, dict[str, Any]]:
    """Returns the same where parameters are said for each way."""
    for key in said.values.keys() - set(_WAYS):
        raise said.error(key, "is beside parameters that differ by layer, which is not served")
    main, compress = (said.object(way) for way in _WAYS)
    check_fields(main, ROPE["default"] | {"partial_rotary_factor": USED})
    kind = main.text("rope_type", main.text("type", "default"))
    if kind != "default":
        raise main.error("rope_type", f"{kind!r} is not served; served is default")
    rotated, other = (int(head * each.number("partial_rotary_factor", 1.0)) for each in (main, compress))
    if rotated != other:
        raise said.error("main", "rotates another part of heads than compress, which is not served")
    if config.has("partial_rotary_factor") and int(head * _share(config, head)) != rotated:
        raise config.error("partial_rotary_factor", "is another than that of rope_parameters")
    parameters = {key: value for key, value in compress.values.items() if key != "partial_rotary_factor"}
    return rotated, main.number("rope_theta"), parameters | {"rope_theta": compress.number("rope_theta")}


def _share(config: Fields, head: int) -> float:
    size = config.integer("qk_rope_head_dim", None)
    return config.number("partial_rotary_factor", _ROTATED / _HEAD if size is None else size / head)


def deepseek_v4(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, rotated = config.integer("num_hidden_layers"), config.integer("qk_rope_head_dim")
    rates = _rates(config)
    compression = build(
        Compression,
        config,
        KEYS,
        kinds=tuple(_KINDS[kind] for kind in _layer_types(config, layers)),
        window=config.integer("sliding_window", 128),
        sparse_every=rates["compressed_sparse_attention"],
        heavy_every=rates["heavily_compressed_attention"],
        rotated=rotated,
        query_rank=config.integer("q_lora_rank", 1024),
        groups=config.integer("o_groups", 8),
        group_rank=config.integer("o_lora_rank", 1024),
        index_heads=config.integer("index_n_heads", 64),
        index_size=config.integer("index_head_dim", 128),
        most=config.integer("index_topk", 512),
    )
    hyper = build(
        HyperConnections,
        config,
        KEYS,
        count=config.integer("hc_mult", 4),
        rounds=config.integer("hc_sinkhorn_iters", 20),
        eps=config.number("hc_eps", 1e-6),
    )
    theta = config.number("window_rope_theta")
    return {"compression": compression, "hyper": hyper, "rotary_dim": rotated, "window_rope_theta": theta}


def listed_layers(config: Fields, layers: int) -> tuple[int, ...]:
    """Returns the layers in which a table says who is chosen among experts."""
    first = config.integer("num_hash_layers", 3)
    if first < 0:
        raise config.error("num_hash_layers", f"must be at least 0, but is {first}")
    layers = min(max(layers, 0), LIMITS["num_layers"])
    usual = [CHOICES[layer >= first] for layer in range(layers)]
    kinds = _of_layers(config, "mlp_layer_types", CHOICES, layers, usual)
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "hash_moe")


def _layer_types(config: Fields, layers: int) -> list[str]:
    layers = min(max(layers, 0), LIMITS["num_layers"])
    ratios = config.values.get("compress_ratios")
    sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
    usual = [sparse if layer > 2 and layer % 2 else heavy for layer in range(layers)]
    if ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < layers or any(type(one) is not int for one in ratios):
            raise config.error("compress_ratios", f"must be a list of 0, 4 or 128 for each of the {layers} layers")
        if others := sorted(set(ratios[:layers]) - _OLD_KINDS.keys()):
            raise config.error("compress_ratios", f"has {others[0]}; served are 0, 4 and 128")
        usual = [_OLD_KINDS[one] for one in ratios[:layers]]
    return _of_layers(config, "layer_types", tuple(_KINDS), layers, usual)


def _of_layers(config: Fields, key: str, served: tuple[str, ...], layers: int, usual: list[str]) -> list[str]:
    """Reads what each layer is; layers that draft may be behind them in the list."""
    said = config.values.get(key)
    cut = said[:layers] if isinstance(said, list) else said
    return config.with_values({key: cut}).kinds(key, served, layers, usual)


def _rates(config: Fields) -> dict[str, int]:
    said = config.object("compress_rates")
    for key in said.values.keys() - _RATES.keys():
        raise said.error(key, f"is not known; served are {', '.join(_RATES)}")
    rates = {}
    for kind, usual in _RATES.items():
        rates[kind] = config.integer(_OLD_RATES[kind], said.integer(kind, usual))
    return rates
