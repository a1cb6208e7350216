"""The architectures that are served, a row each, in a file of each kind. Which fields each knows:
`hugging_face_fields/`."""

from __future__ import annotations

from tandem.worker.checkpoints.hugging_face_architectures.experts import EXPERTS
from tandem.worker.checkpoints.hugging_face_architectures.gemmas import GEMMAS
from tandem.worker.checkpoints.hugging_face_architectures.hybrids import HYBRIDS
from tandem.worker.checkpoints.hugging_face_architectures.latents import LATENTS
from tandem.worker.checkpoints.hugging_face_architectures.layer_norms import LAYER_NORMS
from tandem.worker.checkpoints.hugging_face_architectures.learned_positions import LEARNED_POSITIONS
from tandem.worker.checkpoints.hugging_face_architectures.llamas import LLAMAS

_KINDS = (LLAMAS, LAYER_NORMS, LEARNED_POSITIONS, GEMMAS, EXPERTS, LATENTS, HYBRIDS)
ARCHITECTURES = {each.name: each for kind in _KINDS for each in kind}
