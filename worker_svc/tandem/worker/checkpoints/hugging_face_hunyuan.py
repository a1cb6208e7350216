"""Reads what files of HunYuan say in a way of their own: theta that is raised by `alpha`, and lists of a number for
each layer, which are served where all are the same."""

from __future__ import annotations

from tandem.worker.checkpoints.fields import Fields, shown
from tandem.worker.checkpoints.hugging_face_fields.rope import RAISED_ROPE
from tandem.worker.checkpoints.known_fields import check_fields

_SPELLINGS = ("rope_parameters", "rope_scaling")


def with_theta(config: Fields) -> Fields:
    """Returns the config with theta as `alpha` raises it, which is called dynamic scaling, but looks at no length."""
    spelling = next((key for key in _SPELLINGS if config.object(key).values.get("alpha")), None)
    if spelling is None:
        return config
    rope = config.object(spelling)
    if rope.text("rope_type", rope.text("type")) != "dynamic":
        return config  # where alpha is not known
    check_fields(rope, RAISED_ROPE)
    alpha, size = rope.number("alpha"), config.integer("head_dim")
    if alpha < 1 or size < 3:
        raise rope.error("alpha", f"must be at least 1, of heads of 3 numbers or more, but is {alpha:g}")
    beside, among = config.number("rope_theta", None), rope.number("rope_theta", None)
    if beside is not None and among is not None and beside != among:
        raise rope.error("rope_theta", f"is {among:g}, but rope_theta beside it is {beside:g}")
    theta = next(one for one in (among, beside, 10000.0) if one is not None) * alpha ** (size / (size - 2))
    others = {key: value for key, value in config.values.items() if key not in (*_SPELLINGS, "rope_theta")}
    return config.with_values(others | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}})


def with_one_number(config: Fields) -> Fields:
    """Returns the config of a HunYuan with experts with one number for each list, under the name that others have."""
    values = dict(config.values)
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        listed = values.get(key)
        if not isinstance(listed, list):
            continue
        if not listed or any(one != listed[0] for one in listed) or isinstance(listed[0], list):
            raise config.error(key, f"is {shown(listed)}; numbers that differ by layer are not served")
        values[key] = listed[0]
    one = config.with_values(values)
    size = one.integer("intermediate_size")
    if one.integer("moe_intermediate_size", size) != size:
        raise config.error("moe_intermediate_size", f"is not intermediate_size, which is {size}")
    if one.integer("num_shared_expert", 1) != 1:
        raise config.error(
            "num_shared_expert", f"is {shown(values['num_shared_expert'])}, which is not served; served: 1"
        )
    return with_theta(one.with_values(values | {"num_experts_per_tok": one.integer("moe_topk", 1)}))
