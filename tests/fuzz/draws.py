"""How a setting of a model is drawn by chance."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.worker_svc.model.tiny_models.shared import ABSENT

Drawn = dict[str, Any]
Draw = Callable[[Random, Drawn], Any]  # of a field, by what is drawn already; the number of layers is


def one_of(*choices: Any) -> Draw:
    return lambda random, _: random.choice(choices)


def listed(*kinds: Any) -> Draw:
    """A kind for each layer."""
    return lambda random, drawn: [random.choice(kinds) for _ in range(drawn["num_hidden_layers"])]


def some_layers(random: Random, drawn: Drawn) -> list[int]:
    return [layer for layer in range(drawn["num_hidden_layers"]) if random.random() < 0.4]


def up_to_layers(random: Random, drawn: Drawn) -> int:
    return random.randint(0, drawn["num_hidden_layers"] + 1)


FLAG = one_of(False, True)
EPSILON = one_of(1e-8, 1e-6, 1e-5, 1e-3, 0.05)
MULTIPLIER = one_of(0.22, 0.5, 1.0, 1.7, 4.0)
WINDOWS = ("sliding_attention", "full_attention")
WINDOW = one_of(1, 3, 16, 21, 40, 95, 96, 4096)
NONE_OR_WINDOW = one_of(ABSENT, 1, 3, 16, 21, 40, 4096)


def shuffled(random: Random, drawn: Drawn, needed: str, *others: str) -> list[str]:
    """A kind for each layer, one at least being the first one."""
    kinds = [needed, *(random.choice((needed, *others)) for _ in range(drawn["num_hidden_layers"] - 1))]
    random.shuffle(kinds)
    return kinds


def both(random: Random, drawn: Drawn, *kinds: str) -> list[str]:
    """A kind for each layer, of two or more, each kind being there."""
    rest = (random.choice(kinds) for _ in range(drawn["num_hidden_layers"] - len(kinds)))
    every = [*kinds, *rest]
    random.shuffle(every)
    return every


def nemotron_pattern(random: Random, drawn: Drawn) -> str:
    letters = "M-*E"
    pattern = ["*", *(random.choice(letters) for _ in range(random.randint(0, 5)))]
    random.shuffle(pattern)
    return "".join(pattern)


def indexer_types(random: Random, drawn: Drawn) -> list[str]:
    return ["full", *(random.choice(("full", "shared")) for _ in range(drawn["num_hidden_layers"] - 1))]


def gemma4_layers(random: Random, drawn: Drawn) -> list[str]:
    return [*(random.choice(WINDOWS) for _ in range(drawn["num_hidden_layers"] - 1)), "full_attention"]


def layers_that_share(random: Random, drawn: Drawn) -> list[str]:
    """A kind for each layer, in an order of which the last ones can share."""
    return listed(*WINDOWS)(random, drawn)


def shared_layers(random: Random, drawn: Drawn) -> int:
    """So many that a layer of each kind is left, as transformers wants it."""
    kinds, every = drawn["layer_types"], set(drawn["layer_types"])
    most = max((n for n in range(len(kinds)) if set(kinds[: len(kinds) - n]) == every), default=0)
    return random.randint(0, most)


def thetas(random: Random, drawn: Drawn) -> list[float]:
    """One for all layers with windows, or 0: no rotation; any for the others."""
    window = random.choice((0.0, 100.0, 1000.0))
    kinds = drawn.get("layer_types") or []
    return [window if kind == WINDOWS[0] else random.choice((0.0, 50.0, 1000.0)) for kind in kinds]


def groups_of_experts(random: Random, drawn: Drawn) -> int:
    return random.choice(
        [n for n in (1, 2, 3, 4) if drawn["num_experts"] % n == 0 and drawn["num_experts"] // n > 1] or [1]
    )


def qwen_layers(random: Random, drawn: Drawn) -> list[str] | None:
    """None: as the other fields say; a window is that of `use_sliding_window` alone."""
    return random.choice((None, listed(*WINDOWS)(random, drawn))) if drawn.get("use_sliding_window") else None


def layers_of_a_window(random: Random, drawn: Drawn) -> list[str] | None:
    """None: as the other fields say; without a window, no layer has one."""
    return None if drawn.get("sliding_window", ABSENT) is ABSENT else listed(*WINDOWS)(random, drawn)


def groups_of_a_token(random: Random, drawn: Drawn) -> int:
    """So many that it finds its experts in them."""
    return random.randint(-(-drawn["num_experts_per_tok"] * drawn["n_group"] // drawn["num_experts"]), drawn["n_group"])
