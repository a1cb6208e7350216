"""A small model of every architecture, and of what its configuration may say, by transformers' classes; in files of the
same kinds as in `checkpoints/hugging_face_architectures/`. `random_models.py` makes them."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.experts import EXPERT_MODELS
from tests.worker_svc.model.tiny_models.gemmas import GEMMA_MODELS
from tests.worker_svc.model.tiny_models.hybrids import HYBRID_MODELS
from tests.worker_svc.model.tiny_models.latents import LATENT_MODELS
from tests.worker_svc.model.tiny_models.layer_norms import LAYER_NORM_MODELS
from tests.worker_svc.model.tiny_models.learned_positions import LEARNED_POSITION_MODELS
from tests.worker_svc.model.tiny_models.llamas import LLAMA_MODELS
from tests.worker_svc.model.tiny_models.shared import Models

MODELS: Models = (
    LLAMA_MODELS
    | LAYER_NORM_MODELS
    | LEARNED_POSITION_MODELS
    | GEMMA_MODELS
    | EXPERT_MODELS
    | LATENT_MODELS
    | HYBRID_MODELS
)
FIRST = {kind: name for name, (kind, _) in reversed(MODELS.items())}  # of each kind
