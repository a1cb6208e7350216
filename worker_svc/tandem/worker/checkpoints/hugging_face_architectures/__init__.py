"""The architectures that are served, a row each, in a file of each kind. Which fields each knows:
`hugging_face_fields.py`."""

from __future__ import annotations

from tandem.worker.checkpoints.hugging_face_architectures.experts import EXPERTS
from tandem.worker.checkpoints.hugging_face_architectures.gemmas import GEMMAS
from tandem.worker.checkpoints.hugging_face_architectures.hybrids import HYBRIDS
from tandem.worker.checkpoints.hugging_face_architectures.latents import LATENTS
from tandem.worker.checkpoints.hugging_face_architectures.layer_norms import LAYER_NORMS
from tandem.worker.checkpoints.hugging_face_architectures.llamas import LLAMAS

ARCHITECTURES = {each.name: each for kind in (LLAMAS, LAYER_NORMS, GEMMAS, EXPERTS, LATENTS, HYBRIDS) for each in kind}
