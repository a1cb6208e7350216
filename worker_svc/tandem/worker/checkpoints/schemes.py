"""How a Hugging Face folder stores quantized matrices, as `quantization_config` announces it.

A scheme tells what the parts of a matrix are called, looks at them before they are read, and makes a `StoredMatrix`.
Which matrices are quantized is seen from their parts: the others are plain.

| `quant_method` | parts of W `[out, in]` beside or instead of `weight` |
|---|---|
| fp8, fbgemm_fp8 | `weight` e4m3; `weight_scale_inv` or `weight_scale`, of all, each row or squares: its factor |
| the same, DeepSeek-V4's experts | `weight` of bytes of two e2m1; `weight_scale_inv`, powers of two |
| compressed-tensors | `weight` int8 or e4m3, or `weight_packed` int32; `weight_scale`, perhaps `weight_zero_point` |
| the same, e2m1 | `weight_packed` of bytes; `weight_scale` e4m3, divided by `weight_global_scale`, or powers of two |
| modelopt | `weight` e4m3 or bytes of two e2m1; `weight_scale`, perhaps times `weight_scale_2` (`model_optimizer.py`) |
| bitsandbytes | `weight` of bytes, `weight.absmax`, `weight.quant_map`; or int8 with `SCB`, 127 times the scales |
| mxfp4 (gpt-oss) | of experts: `_blocks` `[experts, out, in / 32, 16]` of bytes, `_scales` `[experts, out, in / 32]` |
| gptq, awq, auto-round | `qweight`, `qzeros`, `scales`, perhaps `g_idx` (`packed.py`) |

Scales of activations are not looked at: activations are not rounded as these kernels of others do it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.worker.checkpoints.checkpoint import StoredMatrix, StoredTensor
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.grouped import E8M0, FLOAT8
from tandem.worker.checkpoints.hugging_face_fields.quantization import (
    QUANTIZATION,
    QUANTIZED_ACTIVATIONS,
    QUANTIZED_GROUP,
    QUANTIZED_WEIGHTS,
)
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.model_optimizer import HF_QUANT_CONFIG, model_optimizer_scheme
from tandem.worker.checkpoints.packed import Packing, packing_of
from tandem.worker.checkpoints.scaled import E4M3, INT8, MXFP4, SIGNED_WORDS4, WORDS4, WORDS8, ScaledMatrix, codes
from tandem.worker.checkpoints.scheme_parts import (
    FLOATS,
    ONE,
    Part,
    Scheme,
    e2m1,
    e2m1_parts,
    in_powers,
    powers_part,
    scale_part,
    scaled,
)

_BYTES = (torch.int8, torch.uint8)  # of two numbers each


@dataclass(frozen=True, slots=True)
class PackedScheme:
    """GPTQ, AWQ and AutoRound."""

    packing: Packing
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "qweight" not in found:
            return {}
        rows, columns = shape
        scales = found["scales"].shape if "scales" in found else ()
        packing = self.packing.of(columns, found["qweight"].shape, scales)
        return {
            name: Part((its,), FLOATS if name == "scales" else (torch.int32,))
            for name, its in packing.shapes(rows, columns, ordered="g_idx" in found).items()
        }

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        packing = self.packing.of(shape[1], parts["qweight"].shape, parts["scales"].shape)
        return packing.matrix(shape, parts)


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """Floats of 8 bits; `block`: the rows and columns of a square with one scale."""

    block: tuple[int, int]
    parts: tuple[str, ...] = (
        "weight",
        "weight_scale_inv",
        "weight_scale",
        "activation_scale",
        "input_scale",
        "input_scale_ub",
    )

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "weight" in found and found["weight"].dtype in _BYTES and "weight_scale_inv" in found:
            numbers, scale = e2m1_parts(shape, E8M0)  # of DeepSeek-V4's experts
            return {"weight": Part(numbers.shapes, _BYTES), "weight_scale_inv": scale}
        if "weight" not in found or found["weight"].dtype != FLOAT8:
            return {}
        name = "weight_scale" if "weight_scale" in found else "weight_scale_inv"
        expected = {"weight": Part((shape,), (FLOAT8,)), name: scale_part(shape, self.block)}
        return expected | {name: Part(ONE, FLOATS) for name in self.parts[3:] if name in found}

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        scale = parts.get("weight_scale_inv", parts.get("weight_scale"))
        assert scale is not None
        if parts["weight"].dtype in _BYTES:
            return e2m1(shape, parts["weight"].view(torch.uint8), scale, None, parts)
        return scaled(E4M3, shape, parts["weight"], scale, parts, self.block)


@dataclass(frozen=True, slots=True)
class StackedFloat8Scheme:
    """The same of all of a layer's experts in one tensor."""

    block: tuple[int, int]
    turned: bool  # `[experts, in, out]`, with scales so
    parts: tuple[str, ...] = ("", "_scale_inv", "_activation_scale")

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "" not in found or found[""].dtype != FLOAT8:
            return {}
        experts, rows, columns = shape
        squares = (-(-rows // self.block[0]), -(-columns // self.block[1]))
        numbers = (columns, rows) if self.turned else (rows, columns)
        # Of squares; of an expert's whole matrix; of its gate, and of its up.
        scales = tuple((experts, *(one[::-1] if self.turned else one)) for one in (squares, (1, 1), (2, 1)))
        expected = {"": Part(((experts, *numbers),), (FLOAT8,)), "_scale_inv": Part(scales, FLOATS)}
        activations = Part(((experts,), (experts, 1, 1)), FLOATS)
        return expected | ({"_activation_scale": activations} if "_activation_scale" in found else {})

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        numbers, scale = parts[""], parts["_scale_inv"]
        if self.turned:
            numbers, scale = numbers.t(), scale.t()
        return scaled(E4M3, shape, numbers, scale, parts, self.block)


def of_experts(scheme: Scheme, *, turned: bool) -> Scheme | None:
    """Returns how all of a layer's experts in one tensor are stored, perhaps `turned`; None where they are not."""
    if isinstance(scheme, Float8Scheme):
        return StackedFloat8Scheme(scheme.block, turned)
    return scheme if isinstance(scheme, Mxfp4Scheme) else None


@dataclass(frozen=True, slots=True)
class CompressedScheme:
    """compressed-tensors: int8, e4m3, int4 or int8 in words of 32 bits, and e2m1 in bytes."""

    block: tuple[int, int]
    parts: tuple[str, ...] = (
        "weight",
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "weight_global_scale",
        "input_scale",
        "input_zero_point",
        "input_global_scale",
    )

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "weight_packed" not in found and (
            "weight" not in found or found["weight"].dtype not in (torch.int8, FLOAT8)
        ):
            return {}
        if "weight_g_idx" in found:
            raise ValueError("weight_g_idx is there: the order of activations (actorder) is not served")
        unused = Part(ONE, (*FLOATS, torch.int8, FLOAT8))
        inputs = {name: unused for name in self.parts[-3:] if name in found}
        if (packed := found.get("weight_packed")) is not None and packed.dtype == torch.uint8:
            return _packed_e2m1(shape, found) | inputs
        rows, columns = shape
        scale = scale_part(shape, self.block, found.get("weight_scale"))
        zero = Part(scale.shapes, (torch.int8,))
        if "weight_packed" in found:
            bits = 8 if found["weight_packed"].shape == (rows, -(-columns // 4)) else 4
            words = (rows, -(-columns * bits // 32))
            expected = {"weight_packed": Part((words,), (torch.int32,)), "weight_shape": Part(((2,),), (torch.int64,))}
            zero = Part(tuple((-(-its[0] * bits // 32), *its[1:]) for its in scale.shapes if its), (torch.int32,))
        else:
            expected = {"weight": Part((shape,), (torch.int8, FLOAT8))}
            its = found.get("weight_scale")
            if its is not None and its.dtype == E8M0 and found["weight"].dtype == FLOAT8:
                scale = powers_part(shape)
        expected["weight_scale"] = scale
        if "weight_zero_point" in found:
            expected["weight_zero_point"] = zero
        return expected | inputs

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        zero, scale = parts.get("weight_zero_point"), parts["weight_scale"]
        if "weight_packed" in parts and parts["weight_packed"].dtype == torch.uint8:
            divisor = parts.get("weight_global_scale")
            factor = None if divisor is None else 1 / divisor.float()
            return e2m1(shape, parts["weight_packed"], scale, factor, parts)
        if "weight_packed" not in parts:
            numbers = parts["weight"]
            if scale.dtype == E8M0:
                return in_powers(shape, numbers, scale, parts)
            form = E4M3 if numbers.dtype == FLOAT8 else INT8
        else:
            if parts["weight_shape"].tolist() != list(shape):
                raise ValueError(
                    f"weight_shape is {parts['weight_shape'].tolist()}, but the config makes it {[*shape]}"
                )
            numbers = parts["weight_packed"]
            form = WORDS8 if numbers.shape[1] == -(-shape[1] // 4) else WORDS4 if zero is not None else SIGNED_WORDS4
            if zero is not None:  # packed along the rows
                zero = form.decode(zero.t()).t()[: shape[0]]
        if zero is not None:
            zero = zero.float().reshape(scale.shape if scale.dim() == 2 else (-1, 1))
            if not zero.any() and form.bits == 8:
                zero = None
        return scaled(form, shape, numbers, scale, parts, self.block, zero)


def _packed_e2m1(shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
    if "weight_zero_point" in found:
        raise ValueError("weight_zero_point is there: floats of 4 bits with zeros are not served")
    if "weight_global_scale" in found:
        numbers, scale = e2m1_parts(shape, FLOAT8)
        return {"weight_packed": numbers, "weight_scale": scale, "weight_global_scale": Part(ONE, FLOATS)}
    numbers, scale = e2m1_parts(shape, E8M0)
    return {"weight_packed": numbers, "weight_scale": scale}


_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@dataclass(frozen=True, slots=True)
class BitsAndBytesScheme:
    """bitsandbytes: nf4 and fp4 in blocks along the rows, whose scales may be quantized too; int8 with a scale a row.

    The 256 numbers of `nested_quant_map` times `nested_absmax` of 256 blocks, plus an offset, are those scales.
    """

    parts: tuple[str, ...] = (
        "weight",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4",
        "weight.quant_state.bitsandbytes__fp4",
        "SCB",
        "weight_format",
    )

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "SCB" in found:
            rows, _ = shape
            expected = {"weight": Part((shape,), (torch.int8,)), "SCB": Part(((rows,),), (torch.float32,))}
            return expected | {name: Part(ONE, (torch.uint8,)) for name in ("weight_format",) if name in found}
        if "weight.absmax" not in found:
            return {}
        rows, columns = shape
        states = [name for name in self.parts[5:7] if name in found] or [self.parts[5]]
        state = found.get(states[0])
        blocks = found["weight.absmax"].shape
        expected = {
            "weight": Part(((-(-rows * columns // 2), 1),), (torch.uint8,)),
            "weight.absmax": Part((blocks,), (torch.float32, torch.uint8)),
            "weight.quant_map": Part(((16,),), (torch.float32,)),
            states[0]: Part((state.shape if state is not None and len(state.shape) == 1 else (0,),), (torch.uint8,)),
        }
        if "weight.nested_absmax" in found:
            nested = found["weight.nested_absmax"].shape
            expected |= {
                "weight.nested_absmax": Part((nested,), (torch.float32,)),
                "weight.nested_quant_map": Part(((256,),), (torch.float32,)),
            }
        return expected

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        rows, columns = shape
        if "SCB" in parts:
            return scaled(INT8, shape, parts["weight"], parts["SCB"] / 127, parts)
        code = "nf4" if self.parts[5] in parts else "fp4"
        state = _state(parts[f"weight.quant_state.bitsandbytes__{code}"])
        size, absmax = state.integer("blocksize"), parts["weight.absmax"]
        if size < 1 or columns % size or absmax.shape != (rows * columns // size,):
            raise ValueError(f"blocks of {size} (bitsandbytes) do not divide rows of {columns}, which is not served")
        if state.values.get("shape") != [rows, columns]:
            raise ValueError(
                f"is {state.values.get('shape')} by its quant_state, but [{rows}, {columns}] by the config"
            )
        if "weight.nested_absmax" in parts:
            each = state.integer("nested_blocksize")
            if each < 1 or absmax.dtype != torch.uint8 or len(parts["weight.nested_absmax"]) != -(-len(absmax) // each):
                raise ValueError("has scales whose own scales (bitsandbytes, nested_absmax) do not fit")
            of_blocks = parts["weight.nested_absmax"].repeat_interleave(each)[: len(absmax)]
            absmax = parts["weight.nested_quant_map"][absmax.long()] * of_blocks + state.number("nested_offset")
        table = parts["weight.quant_map"]
        expected = torch.tensor(_NF4) if code == "nf4" else codes_of_fp4()
        if not torch.allclose(table, expected, rtol=0, atol=1e-6):
            raise ValueError(f"has a table of {code} (bitsandbytes, quant_map) that is not the usual one")
        unit = 1023 if code == "nf4" else 192
        form = codes(code, tuple(number * unit for number in _NF4) if code == "nf4" else ())
        numbers = parts["weight"].view(rows, columns // 2)
        return scaled(form, shape, numbers, absmax.float().view(rows, -1) / unit, parts)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """MXFP4 of experts: 32 inputs in 16 bytes, and the exponent of their scale."""

    parts: tuple[str, ...] = ("_blocks", "_scales")

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        if "_blocks" not in found:
            return {}
        *lead, columns = shape
        if columns % 32:
            raise ValueError(f"has rows of {columns} numbers, but MXFP4 stores 32 at once")
        groups = (*lead, columns // 32)
        return {"_blocks": Part(((*groups, 16),), (torch.uint8,)), "_scales": Part((groups,), (torch.uint8,))}

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        blocks, scale = parts["_blocks"], parts["_scales"]
        stored = blocks.nbytes + scale.nbytes
        return ScaledMatrix.of(MXFP4, shape, blocks.view(len(blocks), -1), scale, block=(1, 32), stored=stored)


def codes_of_fp4() -> torch.Tensor:
    """Returns what bitsandbytes' sixteen floats of 4 bits are."""
    above = torch.tensor([0, 1, 128, 192, 64, 96, 32, 48]) / 192
    return torch.cat((above, -above))


def scheme_of(config: Fields) -> Scheme | None:
    """Reads `quantization_config`, or the file that ModelOpt writes beside it or instead; returns None without one.
    Raises CheckpointError for what is not served."""
    fields, beside = config.object("quantization_config"), config.path.parent / HF_QUANT_CONFIG
    if not fields.values:
        return model_optimizer_scheme(Fields.read(beside)) if beside.exists() else None
    # ModelOpt did not always name itself.
    method = fields.text("quant_method", "modelopt" if fields.has("quant_algo") else None)
    if method is None or method not in QUANTIZATION:
        raise fields.error("quant_method", f"{method!r} is not served; served are {', '.join(QUANTIZATION)}")
    check_fields(fields, QUANTIZATION[method])
    match method:
        case "mxfp4":
            return Mxfp4Scheme()
        case "fp8" | "fbgemm_fp8":
            return Float8Scheme(_block(fields, "weight_block_size"))
        case "compressed-tensors":
            return CompressedScheme(_compressed_block(fields))
        case "bitsandbytes":
            return BitsAndBytesScheme()
        case "modelopt":
            return model_optimizer_scheme(fields, Fields.read(beside) if beside.exists() else None)
    return PackedScheme(packing_of(method, fields))


def _compressed_block(fields: Fields) -> tuple[int, int]:
    """Checks what is said of weights and activations, and returns the squares that share a scale."""
    groups, block = fields.object("config_groups"), (128, 128)
    for name in groups.values:
        group = groups.object(name)
        check_fields(group, QUANTIZED_GROUP)
        weights = group.object("weights")
        check_fields(weights, QUANTIZED_WEIGHTS)
        check_fields(group.object("input_activations"), QUANTIZED_ACTIVATIONS)
        if weights.values and weights.integer("num_bits") not in (4, 8):
            raise weights.error("num_bits", f"is {weights.integer('num_bits')}; served are 4 and 8")
        if weights.has("block_structure"):
            block = _block(weights, "block_structure")
    sparsity = fields.object("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise sparsity.error("format", f"{sparsity.text('format')!r} is not served; served is dense")
    return block


def _block(fields: Fields, key: str) -> tuple[int, int]:
    value = fields.values.get(key)
    if value is None:
        return 128, 128
    if not isinstance(value, list) or len(value) != 2 or any(type(one) is not int or one < 1 for one in value):
        raise fields.error(key, "must be the rows and columns of a block")
    return value[0], value[1]


def _state(stored: torch.Tensor) -> Fields:
    """Reads the JSON that bitsandbytes keeps as bytes of a tensor."""
    try:
        values = json.loads(bytes(stored.tolist()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a quant_state that is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError("has a quant_state that is not an object")
    return Fields(Path("quant_state"), values)
