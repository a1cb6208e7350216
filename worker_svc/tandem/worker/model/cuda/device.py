"""Sets a CUDA device up, before anything is computed there."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import torch

# cuBLAS splits the sum over k among workgroups when it has a workspace to add up the parts in, and whether it does so
# depends on the number of rows. With (almost) no workspace it cannot.
REPRODUCIBLE_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def prepare(device: torch.device, *, reproducible: bool, environment: MutableMapping[str, str] = os.environ) -> None:
    """Chooses the GPU, and how matrix products are computed; comes before the first one, which reads the environment.

    Reproducible: sums are not split, and are kept in float32 until they are complete.
    """
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels are launched on the current one
    torch.backends.cuda.matmul.allow_tf32 = False
    reduction = (not reproducible, not reproducible)  # in less precision, and split over k
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduction
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduction
    if reproducible:
        environment.update(REPRODUCIBLE_ENVIRONMENT)
        torch.backends.cuda.preferred_blas_library("cublaslt")
