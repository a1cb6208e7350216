"""Turns logits into the next token: see `pipeline.py` for the stages and their order."""

from tandem.worker.engine.sampler.launch import Launched, launch
from tandem.worker.engine.sampler.pipeline import sample
from tandem.worker.engine.sampler.prepare import prepare
from tandem.worker.engine.sampler.rows import Alternatives, Rows, Sampled
from tandem.worker.engine.sampler.table import SamplingTable

__all__ = ["Alternatives", "Launched", "Rows", "Sampled", "SamplingTable", "launch", "prepare", "sample"]
