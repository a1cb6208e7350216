"""Logits to the next token: see `pipeline.py` for the stages and their order."""

from worker_svc.engine.sampler.launch import Launched, launch, prepare
from worker_svc.engine.sampler.pipeline import sample
from worker_svc.engine.sampler.rows import Alternatives, Rows, Sampled
from worker_svc.engine.sampler.table import SamplingTable

__all__ = ["Alternatives", "Launched", "Rows", "Sampled", "SamplingTable", "launch", "prepare", "sample"]
