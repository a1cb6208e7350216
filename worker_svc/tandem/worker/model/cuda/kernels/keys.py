"""Logits as integers of the same order, among which a bound is found by halving: no sort, and no rounding.

A key is the bits of a float32, those of negative numbers turned around. 0 and -0 have one key.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-2139095041)  # the key of -inf


@triton.jit
def key_of(x):
    """Returns the keys of float32 numbers, int32."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """Returns the numbers that have these keys, float32."""
    key = key.to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_of_bound(bound):
    """Returns the key of the least float32 that is not below a float64, int64."""
    near = bound.to(tl.float32)
    return key_of(near).to(tl.int64) + (near.to(tl.float64) < bound).to(tl.int64)


@triton.jit
def count_from(keys, key):
    """Counts the keys, of one dimension or two, that are not below one of them."""
    found = (keys >= key).to(tl.int32)
    if len(keys.shape) == 2:
        found = tl.sum(found, 1)
    return tl.sum(found, 0)


@triton.jit
def key_of_rank(keys, rank, low, top):
    """Returns the largest key, of `low` to `top`, which `rank` of the keys are not below; `low` where there is none."""
    low, high = low.to(tl.int64), top.to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        enough = count_from(keys, middle) >= rank
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low
