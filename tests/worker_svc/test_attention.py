"""Paged attention equals torch's in float64, and its bits do not depend on company or chunking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.model import attention
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import KVFormat, Plain, kv_format
from tandem.worker.model.operations import Operations, TorchOperations
from tests.worker_svc.model.cuda.kernels.attention_reference import attention as exact_pages

# Heads, kv heads, head dim.
LAYOUTS = [(8, 4, 8), (8, 2, 64), (5, 5, 12), (6, 1, 16), (4, 2, 32), (2, 2, 6), (3, 1, 10)]
SIZES = [((4, 2, size), 70 * (size % 3)) for size in (64, 80, 96, 128, 192, 256)] + [((4, 1, 80), 0), ((7, 1, 96), 70)]
GROUPS = [((group, 1, 64), 100 * (group % 2)) for group in range(1, 17)] + [
    ((group, 1, 128), 70) for group in (1, 3, 4, 7, 16)
]
KINDS: dict[str, type[TorchOperations]] = {
    "torch": TorchOperations,
    "compiled": NativeOperations,
    "without AMX": NativeOperations,
    "without bf16": NativeOperations,
    "by AVX2": NativeOperations,
}
ERRORS = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@dataclass
class Sequence:
    pages: np.ndarray
    q: torch.Tensor  # [length, heads, head_dim]
    k: torch.Tensor
    v: torch.Tensor

    @property
    def length(self) -> int:
        return len(self.q)


class Scene:
    """Sequences of awkward lengths in scattered pages."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        page_size: int = 16,
        *,
        operations: Operations | None = None,
        stored: KVFormat | None = None,
        window: int = 0,
        longest: int = 300,
        cap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.generator = np.random.default_rng(0)
        self.heads, self.scale, self.window, self.cap = heads, head_dim**-0.5, window, cap
        self.sinks = sinks
        self.operations = operations or TorchOperations()
        self.cache = KVCache(CacheShape((KVHeads(kv_heads, head_dim),), 100, page_size, stored or Plain(dtype)), "cpu")
        torch.manual_seed(0)
        # What is not written yet must not matter.
        noise = torch.randn((101, kv_heads, page_size, head_dim)) * 100
        for parts in (*self.cache.keys, *self.cache.values):
            for part, numbers in zip(parts, self.cache.shape.format.encode(noise), strict=True):
                part.copy_(numbers)
        scattered = self.generator.permutation(100)
        self.sequences = []
        for length in (1, 3, page_size - 1, page_size, page_size + 1, 2 * page_size + 5, 7 * page_size + 3, longest):
            count = -(-length // page_size)
            pages, scattered = scattered[:count].astype(np.int64), scattered[count:]
            q = torch.randn(length, heads, head_dim).to(dtype)
            k, v = torch.randn(2, length, kv_heads, head_dim).to(dtype)
            place = np.arange(length)
            slots = torch.from_numpy(np.stack([pages[place // page_size], place % page_size]))
            self.cache.write(0, slots, k, v)
            self.sequences.append(Sequence(pages, q, k, v))

    def attend(self, parts: list[tuple[Sequence, int, int]]) -> list[torch.Tensor]:
        """Attention of tokens `start` to `end` of each sequence, all in one batch, padded as the runner does."""
        segments, row = [], 0
        for sequence, start, end in parts:
            segments.append(Segment(row, end - start, start, sequence.pages))
            row += end - start
        q = torch.cat([sequence.q[start:end] for sequence, start, end in parts])
        q = torch.cat([q, q.new_full((-row % 4, *q.shape[1:]), 7.0)])
        plan = self.operations.plan(
            segments, self.cache, self.heads, AttentionKind(self.window, self.cache.shape.heads[0])
        )
        out = plan.attend(self.cache.keys[0], self.cache.values[0], q, Scores(self.scale, self.cap, self.sinks))
        return [out[s.row : s.row + s.length] for s in segments]


def exact(scene: Scene, sequence: Sequence) -> torch.Tensor:
    group = scene.heads // sequence.k.shape[1]
    q, k, v = (
        tensor.double().transpose(0, 1)
        for tensor in (sequence.q, sequence.k.repeat_interleave(group, 1), sequence.v.repeat_interleave(group, 1))
    )
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scene.scale)
    return out.transpose(0, 1)


@contextlib.contextmanager
def compiled(kind: str) -> Iterator[None]:
    """Compiled attention by all that the processor has, without AMX or its instructions for bf16, or by AVX2 alone."""
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    if not native.allow_wide_attention(kind != "by AVX2") and kind == "by AVX2":
        pytest.skip("no AVX-512 with VNNI: that is what serves")
    more = {"without AMX": "amx", "without bf16": "twos"}.get(kind)
    if more and not native.limit_bf16(more):
        native.limit_bf16("amx")
        pytest.skip(f"no {more}: that is what serves")
    native.limit_bf16({"without AMX": "twos", "without bf16": "shifts"}.get(kind, "amx"))
    native.allow_amx(not more)
    try:
        yield
    finally:
        native.limit_bf16("amx")
        native.allow_amx(True)
        native.allow_wide_attention(True)


@pytest.fixture(params=KINDS)
def operations(request: pytest.FixtureRequest) -> Iterator[Operations]:
    with contextlib.nullcontext() if request.param == "torch" else compiled(request.param):
        yield KINDS[request.param]()


@pytest.fixture(params=[kind for kind in KINDS if kind != "torch"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with compiled(request.param):
        yield request.param


def error_of(kind: str, name: str, layout: tuple[int, int, int], page_size: int = 64) -> float:
    """How far a kind of compiled attention may be from float64 over what a format of few bits has stored."""
    if kind in ("compiled", "without AMX"):  # by instructions of bf16, queries and weights have its bits
        if name == "fp8":
            return 1e-2
        queries = layout[0] // layout[1]
        by_tiles = kind == "compiled" and native.limit_bf16("amx") and page_size % 64 == 0 and queries >= 3
        if (name == "int8" and queries >= 3) or (name == "int4" and (layout[2] % 128 or by_tiles)):
            return 2e-2  # numbers are as large as 3
    return 2e-6 if name == "fp8" else 2e-4  # queries and weights of 16 bits


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_equals_attention_in_float64(operations: Operations, layout: tuple[int, int, int], dtype: torch.dtype):
    scene = Scene(*layout, dtype, operations=operations)
    results = scene.attend([(sequence, 0, sequence.length) for sequence in scene.sequences])
    for sequence, result in zip(scene.sequences, results, strict=True):
        assert (result - exact(scene, sequence)).abs().max() < ERRORS[dtype]


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_bits_are_the_same_alone_in_chunks_and_in_company(
    operations: Operations, layout: tuple[int, int, int], dtype: torch.dtype
):
    assert_same_bits(Scene(*layout, dtype, operations=operations))


@pytest.mark.parametrize("page_size", [6, 16])
@pytest.mark.parametrize("window", [0, 9, -9])
@pytest.mark.parametrize("size", [40, 128])  # AVX-512 multiplies digits of int4 where there are whole 128
@pytest.mark.parametrize("name", ["auto", "int8", "int6", "int4", "fp8"])
def test_compiled_attention_over_stored_numbers_is_that_of_torch(
    kind: str, name: str, size: int, window: int, page_size: int
):
    within = 2e-6 if name == "auto" else error_of(kind, name, (6, 2, size), page_size)
    results = []
    for made_by in (NativeOperations, TorchOperations):
        stored = kv_format(name, torch.float32)
        scene = Scene(
            6, 2, size, torch.float32, page_size, operations=made_by(), stored=stored, window=window, longest=90
        )
        results.append(scene.attend([(sequence, 0, sequence.length) for sequence in scene.sequences]))
        if made_by is NativeOperations:
            assert_same_bits(scene)
    for compiled, expected in zip(*results, strict=True):
        torch.testing.assert_close(compiled, expected, atol=within, rtol=1e-5)


# A query for itself, with as many columns at once as there are; two queries, in groups of int4; and more, with which
# AMX takes keys as they are, where rows are few.
@pytest.mark.parametrize("layout", [(3, 3, 104), (4, 2, 96), (8, 2, 64), (9, 1, 72), (7, 1, 128), (5, 1, 160)], ids=str)
@pytest.mark.parametrize("page_size", [6, 16, 64])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8", "int6", "int4", "fp8"])
@pytest.mark.usefixtures("kind")
def test_few_queries_have_the_bits_of_many_over_stored_numbers(name: str, page_size: int, layout: tuple[int, int, int]):
    plain = name.endswith("16")
    dtype = getattr(torch, name) if plain else torch.float32
    stored = None if plain else kv_format(name, dtype)
    assert_same_bits(Scene(*layout, dtype, page_size, operations=NativeOperations(), stored=stored))


# Heads of fewer and of more numbers than are added up at once, rows that fill the tiles and that do not, pages that
# tiles fill once and twice.
@pytest.mark.parametrize("layout", [(8, 2, 64), (7, 1, 128), (9, 1, 192), (24, 1, 576)], ids=str)
@pytest.mark.parametrize("page_size", [64, 128])
@pytest.mark.parametrize("name", ["int8", "int6"])
def test_whole_numbers_have_the_same_bits_by_tiles_and_by_vectors(
    name: str, page_size: int, layout: tuple[int, int, int]
):
    if not native.allow_amx(True) or not native.limit_bf16("shifts"):
        pytest.skip("no AMX of whole numbers")
    stored = kv_format(name, torch.float32)
    scene = Scene(*layout, torch.float32, page_size, operations=NativeOperations(), stored=stored, window=99, cap=9.0)
    parts = [(sequence, place, sequence.length) for sequence in scene.sequences for place in (0, sequence.length - 1)]
    try:
        by_tiles = scene.attend(parts)
        native.allow_amx(False)
        by_vectors = scene.attend(parts)
    finally:
        native.allow_amx(True)
        native.limit_bf16("amx")
    assert all(torch.equal(*both) for both in zip(by_tiles, by_vectors, strict=True))


@pytest.mark.parametrize("name", ["int8", "int6", "bfloat16"])
def test_how_weights_are_multiplied_has_no_say_in_attention(name: str):
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    plain = name == "bfloat16"
    stored = None if plain else kv_format(name, torch.float32)
    dtype = torch.bfloat16 if plain else torch.float32
    scene = Scene(8, 2, 64, dtype, 64, operations=NativeOperations(), stored=stored)
    parts = [(sequence, 0, sequence.length) for sequence in scene.sequences]
    expected = scene.attend(parts)
    native.allow_wide(False)
    try:
        found = scene.attend(parts)
    finally:
        native.allow_wide(True)
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "heads"), [("fp8", 1), ("int8", 1), ("int8", 3), ("int8", 8)])
@pytest.mark.usefixtures("kind")
def test_every_number_of_8_bits_is_read_as_torch_reads_it(name: str, heads: int):
    shape = CacheShape((KVHeads(1, 256),), 1, 4, kv_format(name, torch.float32))
    cache = KVCache(shape, "cpu")
    if name == "fp8":
        every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    else:
        every = torch.arange(-128, 128).clamp(min=-127).to(torch.int8)  # -128 is not stored
        cache.values[0][1].fill_(0.25)
    cache.values[0][0][0, 0, 0] = every
    plan = NativeOperations().plan(
        [Segment(0, 1, 0, np.zeros(1, np.int32))], cache, heads, AttentionKind(0, shape.heads[0])
    )
    # Of one key alone the answer is its value.
    out = plan.attend(cache.keys[0], cache.values[0], torch.zeros(1, heads, 256), Scores(1.0))
    wanted = every.float() * (1 if name == "fp8" else 0.25)
    torch.testing.assert_close(
        out[0], wanted.expand(heads, 256), rtol=0 if name == "fp8" else 1e-6, atol=0, equal_nan=True
    )


# Sizes of heads that fill registers and that do not, and every way to cut the queries of a group.
@pytest.mark.parametrize(("layout", "window"), [*SIZES, *GROUPS], ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "int8", "int6", "int4", "fp8"])
def test_a_decode_is_that_of_float64_with_the_bits_of_a_prefill_in_any_number_of_threads(
    kind: str, name: str, layout: tuple[int, int, int], window: int
):
    plain = "float" in name
    dtype = getattr(torch, name) if plain else torch.float32
    stored = None if plain else kv_format(name, dtype)
    sinks = torch.linspace(-2, 2, layout[0]) if window else None
    cap = 20.0 if window else 0.0
    scene = Scene(
        *layout,
        dtype,
        64,
        operations=NativeOperations(),
        stored=stored,
        window=window,
        cap=cap,
        sinks=sinks,
        longest=333,
    )
    within = ERRORS[dtype] if plain else max(2e-4, error_of(kind, name, layout))
    longest, cache = scene.sequences[-1], scene.cache
    segments = [Segment(0, longest.length, 0, longest.pages)]
    pages = (cache.keys[0], cache.values[0], cache.shape.format)
    wanted = exact_pages(longest.q, *pages, segments, scene.scale, window, cap, sinks)[-3:]
    (whole,) = scene.attend([(longest, 0, longest.length)])
    assert (whole[-3:] - wanted).abs().max() < within
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            one_by_one = [scene.attend([(longest, place, place + 1)])[0] for place in range(330, 333)]
            together = scene.attend([(scene.sequences[-2], 0, 450), (longest, 330, 333)])[1]
            assert torch.equal(torch.cat(one_by_one), whole[-3:])
            assert torch.equal(together, whole[-3:])
    finally:
        torch.set_num_threads(threads)


# So long that threads share stretches of keys, and shorter, where they share heads; and windows that begin within one.
@pytest.mark.parametrize(("length", "window"), [(4300, 0), (2100, 0), (4300, 1300), (4300, -3000)])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("float32", (3, 1, 128)), ("bfloat16", (4, 2, 64)), ("bfloat16", (8, 1, 64)), ("fp8", (3, 1, 128))),
        *(("fp8", (7, 1, 64)), ("int8", (4, 2, 64)), ("int8", (3, 1, 128)), ("int8", (8, 1, 64))),
        *(("int4", (3, 1, 128)), ("int4", (8, 1, 64))),
    ],
)
def test_stretches_of_a_long_sequence_add_up_to_the_same_bits_however_threads_share_them(
    kind: str, name: str, layout: tuple[int, int, int], length: int, window: int
):
    plain = "float" in name
    dtype = getattr(torch, name) if plain else torch.float32
    stored = None if plain else kv_format(name, dtype)
    sinks = torch.linspace(-2, 2, layout[0]) if window else None
    scene = Scene(
        *layout, dtype, 64, operations=NativeOperations(), stored=stored, window=window, longest=length, sinks=sinks
    )
    longest, cache = scene.sequences[-1], scene.cache
    last = [Segment(0, 5, length - 5, longest.pages)]
    pages = (cache.keys[0], cache.values[0], cache.shape.format)
    wanted = exact_pages(longest.q[-5:], *pages, last, scene.scale, window, 0.0, sinks)
    (whole,) = scene.attend([(longest, 0, length)])
    assert (whole[-5:] - wanted).abs().max() < (ERRORS[dtype] if plain else error_of(kind, name, layout))
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            one_by_one = [scene.attend([(longest, place, place + 1)])[0] for place in range(length - 5, length)]
            assert torch.equal(torch.cat(one_by_one), whole[-5:])
            among_decodes = scene.attend([(s, s.length - 1, s.length) for s in scene.sequences] * 3)[7]
            assert torch.equal(among_decodes, whole[-1:])
            chunk = scene.attend([(longest, length - 40, length)])[0]
            assert torch.equal(chunk, whole[-40:])
    finally:
        torch.set_num_threads(threads)


def assert_same_bits(scene: Scene) -> None:
    whole = scene.attend([(sequence, 0, sequence.length) for sequence in scene.sequences])
    for sequence, expected in zip(scene.sequences, whole, strict=True):
        start = 0
        while start < sequence.length:
            end = min(sequence.length, start + int(scene.generator.integers(1, 40)))
            assert torch.equal(scene.attend([(sequence, start, end)])[0], expected[start:end])
            start = end
    decodes = scene.attend([(sequence, sequence.length - 1, sequence.length) for sequence in scene.sequences])
    for result, expected in zip(decodes, whole, strict=True):
        assert torch.equal(result[0], expected[-1])


def test_small_slabs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    scene = Scene(8, 4, 8, torch.float32)
    parts = [(sequence, 0, sequence.length) for sequence in scene.sequences]
    whole = scene.attend(parts)
    monkeypatch.setattr(attention, "SLAB_FLOATS", 1)
    for result, expected in zip(scene.attend(parts), whole, strict=True):
        assert torch.equal(result, expected)


def test_rows_of_no_segment_give_zeros(operations: Operations):
    scene = Scene(8, 4, 8, torch.float32)
    first = scene.sequences[0]
    q = torch.randn(4, 8, 8)
    plan = operations.plan([Segment(2, 1, 0, first.pages)], scene.cache, 8, AttentionKind(0, KVHeads(4, 8)))
    out = plan.attend(scene.cache.keys[0], scene.cache.values[0], q, Scores(1.0))
    assert not out[[0, 1, 3]].any()
    assert out[2].any()


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_capped_scores_are_those_of_float64_with_the_same_bits_in_any_company(
    operations: Operations, layout: tuple[int, int, int], cap: float
):
    scene = Scene(*layout, torch.float32, operations=operations, window=70, longest=120, cap=cap)
    for sequence in scene.sequences:
        segments = [Segment(0, sequence.length, 0, sequence.pages)]
        cache = scene.cache
        stored = cache.shape.format
        wanted = exact_pages(sequence.q, cache.keys[0], cache.values[0], stored, segments, scene.scale, 70, cap)
        (ours,) = scene.attend([(sequence, 0, sequence.length)])
        assert (ours - wanted).abs().max() < 2e-6  # without a cap 8e-7; of 1 - 2 / (1 + exp(2 x)) alone 6e-6
    assert_same_bits(scene)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_sink_takes_its_part_of_the_softmax_with_the_same_bits_in_any_company(
    operations: Operations, layout: tuple[int, int, int]
):
    sinks = torch.linspace(-20, 20, layout[0])
    scene = Scene(*layout, torch.float32, operations=operations, window=70, longest=120, sinks=sinks)
    for sequence in scene.sequences:
        segments, cache = [Segment(0, sequence.length, 0, sequence.pages)], scene.cache
        pages = (cache.keys[0], cache.values[0], cache.shape.format)
        wanted = exact_pages(sequence.q, *pages, segments, scene.scale, 70, 0.0, sinks)
        (ours,) = scene.attend([(sequence, 0, sequence.length)])
        assert (ours - wanted).abs().max() < ERRORS[torch.float32]
    assert_same_bits(scene)


@pytest.mark.parametrize("size", [20, 98, 100, 128])
def test_torchs_attention_of_a_token_alone_has_the_bits_of_a_prefill(size: int) -> None:
    """MKL computes products of few rows and many inputs in another order."""
    kind = AttentionKind(0, KVHeads(1, size))
    cache = KVCache(CacheShape((kind.heads,), 2, 16, Plain(torch.float32)), "cpu")
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(17, 1, size, generator=generator) for _ in range(2))
    places = torch.arange(17)
    cache.write(0, torch.stack([places // 16, places % 16]), k, v)
    q = torch.randn(17, 2, size, generator=generator)
    pages = np.arange(2)

    def attended(rows: int) -> torch.Tensor:
        plan = attention.AttentionPlan([Segment(0, rows, 17 - rows, pages)], cache, 2, kind)
        return plan.attend(cache.keys[0], cache.values[0], q[17 - rows :], Scores(size**-0.5))[-1]

    assert torch.equal(attended(1), attended(17))
    assert torch.equal(attended(1), attended(5))
