"""`config.json` of published models, typed in with the fields that their files have. Each with how many thousand
million parameters the model is said to have.

Those of GPT-2, StarCoder, GPT-Neo, OPT, OLMo 1, OLMo Hybrid, HunYuan, Pythia, GPT-J, Falcon, Bamba, VaultGemma, Phi,
Nemotron-Mini, HyperCLOVA X and EXAONE 3.5 are as they are remembered, and of Cohere 2 with experts it is what
transformers has where a file says nothing. Gemma 4's are without what sees and hears, which the numbers of their names
count.
"""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published.dense import DENSE
from tests.worker_svc.checkpoints.published.experts import EXPERTS
from tests.worker_svc.checkpoints.published.gemmas import GEMMAS
from tests.worker_svc.checkpoints.published.latents import LATENTS
from tests.worker_svc.checkpoints.published.layer_norms import LAYER_NORMS

PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {**DENSE, **GEMMAS, **LAYER_NORMS, **EXPERTS, **LATENTS}
