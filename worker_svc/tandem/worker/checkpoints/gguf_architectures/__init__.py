"""The architectures of llama.cpp that are served, a row each, in files of the same kinds as in
`hugging_face_architectures/`: what their files leave unsaid, and where tensors are.

Which keys each knows: `gguf_fields.py`.
"""

from __future__ import annotations

from tandem.worker.checkpoints.gguf_architectures.experts import EXPERTS
from tandem.worker.checkpoints.gguf_architectures.gemmas import GEMMAS
from tandem.worker.checkpoints.gguf_architectures.hybrids import HYBRIDS
from tandem.worker.checkpoints.gguf_architectures.latents import LATENTS
from tandem.worker.checkpoints.gguf_architectures.layer_norms import LAYER_NORMS
from tandem.worker.checkpoints.gguf_architectures.learned_positions import LEARNED_POSITIONS
from tandem.worker.checkpoints.gguf_architectures.llamas import LLAMAS

ARCHITECTURES = LLAMAS | LAYER_NORMS | LEARNED_POSITIONS | GEMMAS | EXPERTS | LATENTS | HYBRIDS
