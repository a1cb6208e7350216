"""`config.json` of published models, typed in with the fields that their files have. Each with how many thousand
million parameters the model is said to have."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published.dense import DENSE
from tests.worker_svc.checkpoints.published.experts import EXPERTS
from tests.worker_svc.checkpoints.published.gemmas import GEMMAS
from tests.worker_svc.checkpoints.published.latents import LATENTS
from tests.worker_svc.checkpoints.published.layer_norms import LAYER_NORMS

PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {**DENSE, **GEMMAS, **LAYER_NORMS, **EXPERTS, **LATENTS}
