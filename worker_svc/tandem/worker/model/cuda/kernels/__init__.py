"""Triton kernels for CUDA, each with what it computes written in its head.

`TRITON_INTERPRET=1`, set before triton is imported, runs them on a CPU with numpy: slowly, but with the same indexing.
The interpreter multiplies bf16 matrices wrongly, so there the tests use fp16 and fp32.
"""
