"""What a checkpoint holds (`inspection.py`), and how it is written in another family's files: one file a family, and
`run.py` that makes it safe."""
