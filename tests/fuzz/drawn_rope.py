"""How the parameters of RoPE are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tests.fuzz.draws import FLAG, WINDOWS, Draw, Drawn, one_of
from tests.worker_svc.model.tiny_models.shared import SIZES

THETA = one_of(50.0, 100.0, 500.0, 10000.0, 5e5, 1e7)
# RoPE's parameters by type; those in `MAYBE` are there by chance.
SCALINGS: Mapping[str, Mapping[str, Draw]] = {
    "default": {},
    "linear": {"factor": one_of(1.0, 2.0, 4.5)},
    "dynamic": {"factor": one_of(1.0, 2.0, 4.0)},
    "llama3": {
        "factor": one_of(2.0, 8.0, 32.0),
        "low_freq_factor": one_of(0.5, 1.0, 2.0),
        "high_freq_factor": one_of(3.0, 4.0, 16.0),
        "original_max_position_embeddings": one_of(16, 24, 48, 96),
    },
    "yarn": {
        "factor": one_of(1.0, 2.0, 4.0, 40.0),
        "original_max_position_embeddings": one_of(16, 24, 32, 96),
        "attention_factor": one_of(0.8, 1.0, 1.3),
        "beta_fast": one_of(4.0, 8.0, 32),
        "beta_slow": one_of(0.5, 1, 2.0),
        "mscale": one_of(0.0, 0.707, 1.0),
        "mscale_all_dim": one_of(0.0, 0.5, 0.707, 1.0),
        "truncate": FLAG,
    },
}
MAYBE = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
PARTIAL = (
    "Phi",
    "StableLm",
    "Glm",
    "Nemotron",
    "Phi3",
    "Glm4",
    "Glm4Moe",
    "MiniMaxM2",
    "Qwen3Next",
    "Qwen3_5Text",
    "Qwen3_5MoeText",
)
LONGROPE = ("Phi3", "MiniCPM3", "Phimoe")
BY_LAYER = ("Gemma3Text", "Gemma3nText", "Olmo3", "Mellum")
PARTIAL_BY_LAYER = ("Step3p7Text", "Laguna")


def _scaling(random: Random, *kinds: str) -> Drawn:
    kind = random.choice(kinds)
    parameters = {key: draw(random, {}) for key, draw in SCALINGS[kind].items()}
    kept = {key: value for key, value in parameters.items() if key not in MAYBE or random.random() < 0.4}
    return {"rope_type": kind, "rope_theta": THETA(random, {})} | kept


def drawn_rope(kind: str, random: Random, drawn: Drawn, length: int) -> Drawn | None:
    """RoPE's parameters; None: the class's own."""
    every = (*SCALINGS, "longrope")
    if kind in ("NemotronH", "Phimoe", "GPTJ", "GPT2", "GPTBigCode", "GPTNeo", "OPT", "KimiLinear"):
        return None
    head_dim = drawn.get("head_dim", SIZES["head_dim"]) or drawn["hidden_size"] // drawn["num_attention_heads"]
    if kind in ("Gemma4Text", "Lfm3"):
        full = {"rope_type": "proportional", "rope_theta": THETA(random, {})}
        full["partial_rotary_factor"] = random.choice((0.25, 0.5, 1.0))
        full |= random.choice(({}, {"factor": 4.0}))
        return {"sliding_attention": _scaling(random, "default"), "full_attention": full}
    if kind in BY_LAYER:
        full = _scaling(random, "default", "linear", "llama3", "yarn")
        return {"sliding_attention": _scaling(random, "default"), "full_attention": full}
    if kind == "DeepseekV4":
        parameters = _scaling(random, "default", "yarn")
        del parameters["rope_theta"]  # which is said beside them
        return parameters
    if kind in PARTIAL_BY_LAYER:
        parts = [n / head_dim for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n]
        full, window = ({"partial_rotary_factor": random.choice(parts)} for _ in range(2))
        scaled = _scaling(random, "default", "linear", "llama3", "yarn")
        return {"sliding_attention": _scaling(random, "default") | window, "full_attention": scaled | full}
    if kind == "MiMoV2Flash":
        shares = [n / head_dim for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n]
        share = {"partial_rotary_factor": random.choice(shares)}
        return {each: _scaling(random, "default") | share for each in WINDOWS}
    if kind in ("Ministral3", "Mistral4"):
        return _scaling(random, "yarn") | {"llama_4_scaling_beta": random.choice((0.1, 0.5))}
    rotated = head_dim
    if "kv_lora_rank" in drawn:
        rotated = drawn["qk_rope_head_dim"]
    share: Drawn = {}
    if kind in PARTIAL:
        rotated = random.choice([n for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n])
        share = {"partial_rotary_factor": rotated / head_dim}
    if kind in ("GPTNeoX", "Bamba"):
        rotated, share = head_dim // 2, {"partial_rotary_factor": 0.5}
    if kind in LONGROPE:
        every = ("default", "longrope")
    if kind == "Llama4Text":
        every = ("default", "llama3", "linear")
    chosen = random.choice(every)
    if chosen == "longrope":
        scaling = _scaling(random, "default") | {"rope_type": "longrope"} | share
        scaling["original_max_position_embeddings"] = original = random.choice((8, 24, 48))
        for key in ("short_factor", "long_factor"):
            scaling[key] = [random.choice((1.0, 1.3, 2.5, 8.0)) for _ in range(rotated // 2)]
        if kind == "Phi3":
            drawn["original_max_position_embeddings"] = original
        return scaling | random.choice(({}, {"factor": 4.0}, {"attention_factor": 1.2}))
    scaling = _scaling(random, chosen) | share
    if chosen == "dynamic":
        if rotated <= 2:  # whose frequency is 1 whatever theta is
            return _scaling(random, "default") | share
        drawn["max_position_embeddings"] = random.choice((2, 16, 24, 32))
    return scaling
