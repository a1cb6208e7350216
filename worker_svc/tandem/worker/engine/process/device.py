"""Chooses where an engine computes and in what dtype, and describes that device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tandem.common import machine
from tandem.worker.checkpoints.checkpoint import DTYPES, Checkpoint
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.engine.account import Usage
from tandem.worker.engine.process.config import BuildError
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.linear import computes_bf16, panels_for
from tandem.worker.model.operations import Operations

OLDEST = (8, 0)  # compute capability: older GPUs have no bf16, and too little shared memory for our kernels


def choose_device(name: str) -> torch.device:
    """Returns the device of a name; "auto" takes a GPU where there is one. Raises BuildError if it is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BuildError(f"device {name!r} is not known; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BuildError(f"device {name!r} is not served; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BuildError(f"device {name!r} was asked for, but torch {torch.__version__} sees no CUDA device")
    if device.type == "cuda" and device.index is None:  # a device without a number equals none of its tensors'
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        raise BuildError(
            f"{device_name(device)} has compute capability {_capability(device)}, and GPUs are served from "
            f"{OLDEST[0]}.{OLDEST[1]} (Ampere) on; set device to cpu"
        )
    return device


def _capability(device: torch.device) -> str:
    return "{}.{}".format(*torch.cuda.get_device_capability(device))


def choose_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """Returns the chosen dtype. Else the checkpoint's own, where that is half as wide and the device computes in it; a
    GPU computes a float32 checkpoint in bf16, a CPU that has neither products of our own for a dtype of 16 bits nor
    instructions for bf16 computes it in fp32."""
    if name != "auto":
        return DTYPES[name]
    own = checkpoint.dtype
    if device.type == "cuda":
        return torch.float16 if own == torch.float16 else torch.bfloat16
    if own == torch.float32 or panels_for(own) is not None:
        return own
    return torch.bfloat16 if computes_bf16() else torch.float32


def choose_operations(device: torch.device, dtype: torch.dtype, *, reproducible: bool) -> Operations:
    """Returns what computes beside the matrix products on this device."""
    if device.type != "cuda":
        return cpu_operations()
    from tandem.worker.model.cuda.operations import TritonOperations  # Triton is not installed where there is no CUDA

    return TritonOperations.on(device, reproducible=reproducible, float32=dtype == torch.float32)


def require_kv_format(name: str, device: torch.device, model: ModelConfig) -> None:
    """Raises BuildError for a KV cache that the device cannot read, which a CPU converts whatever it is, or that heads
    of the model's sizes, or what is made of its keys, cannot have."""
    if model.compression is not None and (name != "auto" or device.type != "cpu"):
        said = f"kv_cache_dtype {name}" if name != "auto" else f"device {device.type}"
        raise BuildError(
            f"{said} is not served of models whose keys are compressed ({model.architecture}); "
            f"use {'kv_cache_dtype auto' if name != 'auto' else 'device cpu'}"
        )
    multiple = 1 if name == "auto" else kv_format(name, torch.float32).multiple
    if odd := sorted({heads.size for heads in model.cache_heads if heads.size % multiple}):
        raise BuildError(
            f"kv_cache_dtype {name} needs heads of a multiple of {multiple} numbers, and this model has some of "
            f"{odd[0]}; use auto, fp8 or int8"
        )
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise BuildError(
            f"kv_cache_dtype fp8 needs a GPU of compute capability 8.9 or newer, which {device_name(device)} is not; "
            "use auto, int8, int6 or int4"
        )


def free_memory(device: torch.device) -> int:
    """Returns the bytes that are free on the device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine.free_memory()


def device_name(device: torch.device) -> str:
    """Returns the processor's or GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine.processor_name()


def count_peaks(usage: Usage) -> None:
    """Tells the most memory that this process and its device have had."""
    usage.peak_process_bytes = machine.peak_memory()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    usage.peak_device_bytes = torch.cuda.max_memory_allocated() if on_gpu else 0


@contextmanager
def fitting(what: str, advice: str) -> Iterator[None]:
    """Turns an out-of-memory error into a BuildError that says what did not fit and what to do; likewise a kernel that
    a GPU's compiler refuses or that does not fit on its processors."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BuildError(f"the GPU's memory is too small for {what}: {advice}") from error
    except MemoryError as error:
        raise BuildError(f"the memory is too small for {what}: {advice}") from error
    except Exception as error:
        if not _is_of_triton(error):
            raise
        said = (str(error).strip() or "no reason told").splitlines()[-1]
        raise BuildError(
            f"a kernel for {what} cannot run on this GPU ({type(error).__name__}: {said}): set reproducible to false, "
            "kv_cache_dtype or quantize to another kind, or device to cpu"
        ) from error


def _is_of_triton(error: Exception) -> bool:
    """Tells whether Triton or its compiler says this, which are not loaded where there is no GPU. They are no
    RuntimeErrors."""
    return any(kind.__name__ == "TritonError" for kind in type(error).__mro__)
