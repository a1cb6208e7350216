"""Makes what a layer has instead of attention, by what its sizes are of."""

from __future__ import annotations

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, Recurrence
from tandem.worker.model.delta_net import DeltaNetMixer
from tandem.worker.model.kimi_delta import KimiDeltaMixer
from tandem.worker.model.lightning import LightningMixer
from tandem.worker.model.mamba import MambaMixer
from tandem.worker.model.mixer import Mixer
from tandem.worker.model.short_convolution import ShortConvolutionMixer


def make_mixer(config: ModelConfig, sizes: Recurrence, dtype: torch.dtype, layer: int) -> Mixer:
    """Makes a layer's mixer, whose numbers are still to come."""
    if isinstance(sizes, Lightning):
        return LightningMixer(config, sizes, dtype, layer)
    if isinstance(sizes, DeltaNet):
        return DeltaNetMixer(config, sizes, dtype)
    if isinstance(sizes, KimiDelta):
        return KimiDeltaMixer(config, sizes, dtype)
    if isinstance(sizes, Mamba):
        return MambaMixer(config, sizes, dtype)
    return ShortConvolutionMixer(config, sizes, dtype)
