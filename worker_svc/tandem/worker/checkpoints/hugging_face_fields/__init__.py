"""The fields that are known of `config.json`, its RoPE parameters and `quantization_config`, and of
`generation_config.json`; the rules are those of `known_fields`. Those of architectures stand in files of the same kinds
as in `hugging_face_architectures/`.

What is neutral is what transformers 5 computes nothing with: a test changes every field and compares both.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.experts import EXPERTS
from tandem.worker.checkpoints.hugging_face_fields.gemmas import GEMMAS
from tandem.worker.checkpoints.hugging_face_fields.hybrids import HYBRIDS
from tandem.worker.checkpoints.hugging_face_fields.latents import LATENTS
from tandem.worker.checkpoints.hugging_face_fields.layer_norms import LAYER_NORMS
from tandem.worker.checkpoints.hugging_face_fields.learned_positions import LEARNED_POSITIONS
from tandem.worker.checkpoints.hugging_face_fields.llamas import LLAMAS
from tandem.worker.checkpoints.known_fields import Table

# By our name of the architecture.
CONFIG: Mapping[str, Table] = {
    **LLAMAS,
    **LAYER_NORMS,
    **LEARNED_POSITIONS,
    **GEMMAS,
    **EXPERTS,
    **LATENTS,
    **HYBRIDS,
}
