"""Models of every architecture with settings drawn by chance: biases, RoPE and its scalings, windows, kinds of layers,
experts, multipliers, caps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import transformers

from tests.fuzz.drawn_fields import ACTIVATED, ACTIVATION, ALWAYS, COMMON, OF_KIND
from tests.fuzz.drawn_rope import PARTIAL, PARTIAL_BY_LAYER, drawn_rope
from tests.fuzz.draws import Drawn
from tests.fuzz.shapes import sized
from tests.worker_svc.model.tiny_models import FIRST, MODELS
from tests.worker_svc.model.tiny_models.shared import ABSENT, SIZES


@dataclass(frozen=True)
class Model:
    """What is compared: a class of transformers' with its settings, and how its folder is written."""

    kind: str
    changes: Drawn
    length: int  # of the ids whose logits are compared
    dtype: str
    spelling: str  # as transformers writes it; older: RoPE's parameters apart; terse: no field that has its default
    also: str  # what is looked at besides: answers, ranks, gguf, hugging_face


def drawn(random: Random) -> Model:
    kind = random.choice(sorted(FIRST))
    changes = dict(MODELS[FIRST[kind]][1])
    changes["num_hidden_layers"] = layers = random.randint(2 if kind == "OlmoHybrid" else 1, 5)
    for key, value in changes.items():
        if isinstance(value, list) and key != "num_hidden_layers":
            changes[key] = None  # of so many layers as there were
    if kind != "Step3p7Text":
        _groups(changes, random)
    changes = sized(kind, changes, random)
    if kind == "MiMoV2Flash":  # twice as many heads of keys in layers with a window
        changes["num_attention_heads"] *= 2
    if kind in (*PARTIAL, *PARTIAL_BY_LAYER) and changes.get("head_dim", SIZES["head_dim"]) is not None:
        changes["head_dim"] = random.choice((4, 6, 8, 12, 16, 32, 40, 64, 128))
    # which want it so, whatever a head's size is
    if kind in ("Llama", "Arcee", "InternLM3", "Gemma2", "Gemma3Text", "Gemma3nText", "Jais2"):
        heads = changes["num_attention_heads"]
        changes["hidden_size"] = -(-changes["hidden_size"] // heads) * heads
    fields = getattr(transformers, f"{kind}Config").__dataclass_fields__
    own = dict(OF_KIND.get(kind, {})) | ({"hidden_act": ACTIVATION} if kind in ACTIVATED else {})
    for key, draw in ({key: draw for key, draw in COMMON.items() if key in fields} | own).items():
        if key in ALWAYS.get(kind, ()) or random.random() < 0.6:
            changes[key] = draw(random, changes | {"num_hidden_layers": layers})
    if kind in ("GraniteMoeHybrid", "FalconH1", "Bamba"):
        _mamba_heads(kind, changes, random)
    length = random.choice((1, 2, 17, 33, 50, 73))
    also = random.choice(("", "answers", "ranks", "gguf", "hugging_face"))
    if kind == "NemotronH" and also == "gguf":  # which cannot say it, as a note does
        changes["time_step_min"] = 1e-30
    changes["rope_parameters"] = rope = drawn_rope(kind, random, changes, length)
    if rope is None:
        del changes["rope_parameters"]
    if kind == "NemotronH":
        changes["num_hidden_layers"] = None
    if kind in ("GPTJ", "GPT2", "GPTBigCode"):
        changes |= {"n_layer": layers, "num_hidden_layers": None}
    if kind == "GPTNeo":
        changes |= {"num_layers": layers, "num_hidden_layers": None}
    return Model(
        kind,
        changes,
        length,
        random.choice(("float32", "float32", "float16", "bfloat16")),
        random.choice(("", "", "older", "terse")),
        also,
    )


def _groups(changes: Drawn, random: Random) -> None:
    """Experts in groups, where they are."""
    if "n_routed_experts" not in changes or "compress_rates" in changes:
        return
    groups, each = random.choice((1, 2, 3, 4)), random.choice((2, 3, 4))
    chosen = random.randint(1, groups)
    changes |= {"n_group": groups, "topk_group": chosen, "n_routed_experts": groups * each}
    changes["num_experts_per_tok"] = random.randint(1, chosen * each)


def _mamba_heads(kind: str, changes: Drawn, random: Random) -> None:
    """Heads that share the channels, and groups that share the heads."""
    expand, hidden = random.choice((1, 2, 3)), changes["hidden_size"]
    said = changes.get("mamba_d_ssm", ABSENT) if kind == "FalconH1" else ABSENT
    channels = expand * hidden if said is ABSENT else said
    shares = [n for n in (1, 2, 3, 4, 6, 8, 12, 20) if channels % n == 0]
    changes |= {"mamba_expand": expand, "mamba_n_heads": (heads := random.choice(shares))}
    changes["mamba_n_groups"] = random.choice([n for n in (1, 2, 3) if heads % n == 0])
