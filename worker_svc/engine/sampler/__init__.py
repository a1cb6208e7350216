"""Logits to the next token: see `pipeline.py` for the stages and their order."""

from worker_svc.engine.sampler.pipeline import SamplingTable, sample
from worker_svc.engine.sampler.rows import Rows, Sampled

__all__ = ["Rows", "Sampled", "SamplingTable", "sample"]
