"""Inspects checkpoints (`inspection.py`), and writes them in another family's files: one file a family, and `run.py`
that makes it safe."""
