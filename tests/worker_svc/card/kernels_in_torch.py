"""What each kernel computes of its launch's arguments, by torch, for the virtual card: quicker than Triton's
interpreter, and strict where that would read whatever lies there: pages, places, rows and partials must be ones that
there are.

As with the kernels, a row's bits do not depend on the others: `F.silu`, `sigmoid`, `softplus` and `exp2` of a processor
depend on a number's place, and its products on how many rows and keys they have. Attention is therefore computed query
by query; products are the same for multiples of four rows, to which steps are padded.

How the kernels themselves compute is tested elsewhere (`tests/worker_svc/model/cuda/kernels`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from tandem.worker.checkpoints.grouped import E8M0, scales, to_float8
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.model.activations import gelu_tanh, sigmoid, silu
from tandem.worker.model.attention import oldest_seen
from tandem.worker.model.cuda.kernels import survey
from tandem.worker.model.cuda.kernels.expert_products import GROUPS
from tandem.worker.model.cuda.kernels.swiglu import CLAMPED, GELU, LIMITED
from tandem.worker.model.cuda.kernels.tiles import CODES
from tandem.worker.model.cuda.kernels.words import DIGITS, TABLE
from tandem.worker.model.kv_formats import FEW_BITS, KVFormat, Plain
from tandem.worker.model.moe import choose
from tandem.worker.model.rope import rotate
from tests.worker_svc.card import states_in_torch

Grid = tuple[int, ...]
NOTHING = float("-inf")


def _add_norm(a: Any, grid: Grid) -> None:
    x, out = (each.view(-1, a.size)[: grid[0]] for each in (a.x, a.out))
    assert len(x) == len(out) == grid[0] and a.weight.shape == (a.size,)
    if a.HAS_DELTA:
        x.copy_(x.float() + a.delta.view(-1, a.size)[: grid[0]].float())
    wide = x.float()
    normed = wide / (wide.square().mean(-1, keepdim=True) + a.eps).sqrt() * a.weight.float()
    if a.FLOAT8:
        _store_as_float8(a.out, a.scale, normed.to(x.dtype))
    else:
        out.copy_(normed)


def _swiglu(a: Any, grid: Grid) -> None:
    gate, up = a.gate_up.view(grid[0], 2, a.size).float().unbind(1)
    assert a.BLOCK * grid[1] >= a.size
    a.out.view(grid[0], a.size).copy_(silu(gate) * up)


def _swiglu_float8(a: Any, grid: Grid) -> None:
    gate, up = a.gate_up.view(grid[0], 2, a.size).float().unbind(1)
    _store_as_float8(a.out, a.scale, (silu(gate) * up).to(a.gate_up.dtype))


def _store_as_float8(q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> None:
    assert q.shape == x.shape and scale.shape == (len(x), 1)
    made = to_float8(x)
    q.copy_(made.q)
    scale.copy_(made.scale)


def _survey(a: Any, grid: Grid) -> None:
    """Changes the logits; of what it notes only whether numbers are broken, since `_decide` looks at all of a row."""
    rows, parts = grid
    assert a.rules.shape == (survey.RULES, rows) and a.rules.dtype == torch.float64 and parts == -(-a.size // a.PART)
    x = a.logits.as_strided((rows, a.size), (a.stride, 1))
    a.notes.view(rows, survey.NOTES.value, parts)[:, survey.RAW.value] = x.float().amax(-1, keepdim=True)
    for row in range(rows if a.CHANGED else 0):
        rule = a.rules[:, row]
        mask, slot = int(rule[survey.MASK.value]), int(rule[survey.COUNTS.value])
        if mask >= 0:
            assert mask < len(a.masks) and a.masks.dtype == torch.int32 and a.words == a.masks.shape[1]
            bits = (a.masks[mask].view(-1, 1) >> torch.arange(32)) & 1
            x[row, bits.view(-1)[: a.size] == 0] = NOTHING
        if slot >= 0:
            times = a.counts[slot]
            assert len(times) == a.size and int(times.min()) >= 0
            ratio = rule[survey.REPETITION.value].float()
            lower = torch.where(x[row] > 0, x[row] / ratio, x[row] * ratio)
            lower -= (rule[survey.PRESENCE.value] + rule[survey.FREQUENCY.value] * times.double()).float()
            x[row] = torch.where(times > 0, lower, x[row])


def _decide(a: Any, grid: Grid) -> None:
    rows, rules = grid[0], a.rules
    assert all(len(each) == rows for each in (a.ids, a.largest, a.mass, a.least))
    x = a.logits.as_strided((rows, a.size), (a.stride, 1)).float()
    raw = a.notes.view(rows, survey.NOTES.value, -1)[:, survey.RAW.value, 0]
    for row in range(rows):
        rule = rules[:, row]
        t, u = float(rule[survey.TEMPERATURE.value]), float(rule[survey.UNIFORM.value])
        values = x[row].double().nan_to_num(NOTHING, posinf=0.0)
        if a.BOUNDED:
            out = (values < rule[survey.LOW.value]) | (values > rule[survey.HIGH.value])
            values = values.masked_fill(out, NOTHING)
        top, first = values.max(-1)
        a.largest[row] = float("nan") if not raw[row].isfinite() else top
        a.ids[row], a.mass[row], a.least[row] = first, 1.0, NOTHING
        if t == 0 or top == NOTHING:
            continue
        ordered, ids = values.sort(descending=True, stable=True)
        there = values[values > NOTHING]
        kept, narrowed = len(there), False
        few = a.size <= a.CANDIDATES or kept < a.CANDIDATES
        for place in (survey.SIGMA, survey.K, survey.P, survey.MIN_P) if a.FILTERED else ():
            if (bound := _bound(place.value, float(rule[place.value]), there, ordered[:kept])) is not None:
                kept = max(1, min(kept, int((ordered >= bound).sum())))
                few |= kept < a.CANDIDATES and not narrowed
                narrowed = True
        least = ordered[kept - 1] if narrowed else torch.tensor(NOTHING).double()
        if narrowed and few:
            ordered, ids = ordered[:kept], ids[:kept]
        else:
            ordered, ids = values.masked_fill(values < least, NOTHING), torch.arange(a.size)
        weights = ((ordered - top) / t).exp()
        reached = weights.cumsum(-1)
        a.ids[row] = ids[min(int((reached <= u * reached[-1]).sum()), len(ids) - 1)]
        a.mass[row], a.least[row] = reached[-1], least


def _bound(which: int, asked: float, there: torch.Tensor, kept: torch.Tensor) -> torch.Tensor | None:
    """The least logit that one filter keeps of falling ones; `there` are those of the whole row."""
    top = kept[0]
    if which == survey.SIGMA.value:
        return top - asked * there.std(correction=0) if asked > 0 else None
    if which == survey.K.value:
        return kept[int(asked) - 1] if 0 < asked < len(kept) else None
    if which == survey.MIN_P.value:
        return top + math.log(asked) if asked > 0 else None
    reached = (kept - top).exp().cumsum(-1)
    return kept[int((reached < asked * reached[-1]).sum().clamp_max(len(kept) - 1))] if asked < 1 else None


def _add_at(a: Any, grid: Grid) -> None:
    assert a.BLOCK * grid[0] >= a.size == len(a.places) == len(a.values)
    flat = a.target.as_strided((a.target.untyped_storage().nbytes() // a.target.element_size(),), (1,), 0)
    flat.index_add_(0, a.places + a.target.storage_offset(), a.values)


def _format(a: Any, numbers: torch.Tensor) -> KVFormat:
    return next((form for form in FEW_BITS if CODES.get(form.name) == a.FORMAT), Plain(numbers.dtype))


def _parts(a: Any, kind: str) -> tuple[torch.Tensor, ...]:
    numbers, constants = getattr(a, f"{kind}_numbers"), getattr(a, f"{kind}_constants")
    return (numbers, constants) if a.FORMAT in CODES.values() else (numbers,)


def _store(a: Any, grid: Grid) -> None:
    alone = grid[1] == a.HEADS
    heads = a.HEADS if alone else a.HEADS + 2 * a.KV_HEADS
    assert grid == (-(-a.rows // a.ROWS), heads)
    assert alone or (a.slots.numel() == 2 * a.rows and a.slots.is_contiguous())
    qkv = a.qkv.as_strided((a.rows, heads, a.D), (a.row_stride, a.D, 1))
    if a.BIASED:
        assert a.bias.numel() == heads * a.D
        qkv = (qkv.float() + a.bias.float().view(heads, a.D)).to(qkv.dtype)
    if a.NORMS:
        wide = qkv.float()
        wide = wide / (wide.square().mean(-1, keepdim=True) + a.eps).sqrt()
        sizes, weights = (a.HEADS, a.KV_HEADS, a.KV_HEADS), (a.q_weight, a.k_weight, a.v_weight)
        ends = list(itertools.accumulate(sizes))[: a.NORMS]
        normed = [
            (part * weight.float()).to(qkv.dtype)
            for part, weight in zip(wide.tensor_split(ends, 1), weights[: a.NORMS], strict=False)
        ]
        qkv = torch.cat((*normed, qkv[:, ends[-1] :]), 1)
    qk, v = qkv[:, : a.HEADS + a.KV_HEADS], qkv[:, a.HEADS + a.KV_HEADS :]
    if a.ROTATED:
        assert a.ROTATED == a.D and a.cos.shape == a.sin.shape == (a.rows, 1, a.D)
        qk = rotate(qk, a.cos, a.sin)
    q, k = qk[:, : a.HEADS].float(), qk[:, a.HEADS :].float()
    if a.CHANNELS:
        q = q * a.scale.repeat_interleave(a.HEADS // a.KV_HEADS, 0)
        k = k if alone else (k - a.mean) / a.scale
    a.q_out.copy_(q)
    if alone:
        return
    page, place = _slots(a, a.k_numbers)
    for kind, x in (("k", k), ("v", v.float())):
        parts = _parts(a, kind)
        for part, numbers in zip(parts, _format(a, parts[0]).encode(x), strict=True):
            part[page, :, place] = numbers.to(part.dtype)


def _slots(a: Any, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The page of each row and its place there."""
    page, place = a.slots.view(2, a.rows)
    assert int(page.min()) >= 0 and int(page.max()) < len(numbers), "stores outside of the pages"
    assert int(place.min()) >= 0 and int(place.max()) < a.PAGE == numbers.shape[2], "stores outside of a page"
    return page, place


def _store_latents(a: Any, grid: Grid) -> None:
    assert grid == (-(-a.rows // a.ROWS), a.HEADS + 1) and a.slots.numel() == 2 * a.rows
    assert a.latent.shape == (a.rows, a.D) and a.absorbed.shape == (a.rows, a.HEADS, a.RANK)
    assert a.queries.shape == (a.rows, a.HEADS, a.QUERY) and a.cos.shape == a.sin.shape == (a.rows, 1, a.D - a.RANK)
    wide = a.latent[:, : a.RANK].float()
    normed = wide / (wide.square().mean(-1, keepdim=True) + a.eps).sqrt() * a.weight.float()
    turned = rotate(a.latent[:, None, a.RANK :], a.cos, a.sin)
    made = torch.cat((normed.to(a.latent.dtype)[:, None], turned), -1).float()
    looking = torch.cat((a.absorbed, rotate(a.queries[..., a.RANK - a.D :], a.cos, a.sin)), -1).float()
    if a.CHANNELS:
        looking, made = looking * a.scale, (made - a.mean) / a.scale
    a.out.copy_(looking)
    page, place = _slots(a, a.numbers)
    parts = (a.numbers, a.constants) if a.FORMAT in CODES.values() else (a.numbers,)
    for part, numbers in zip(parts, _format(a, a.numbers).encode(made), strict=True):
        part[page, :, place] = numbers.to(part.dtype)


def _head_product(a: Any, grid: Grid) -> None:
    assert grid == (-(-a.rows // a.M), -(-a.outputs // a.N), a.HEADS) and a.x.shape == (a.rows, a.HEADS, a.columns)
    assert a.w.shape == (a.HEADS, a.outputs, a.columns) and (a.row_stride, a.head_stride) == a.x.stride()[:2]
    a.out.copy_(torch.einsum("nhi,hoi->nho", a.x.float(), a.w.float()))


def _token_places(a: Any, row: int, end: int) -> torch.Tensor:
    """Where the first `end` tokens of a row's sequence are stored."""
    assert a.rows.dtype == a.tables.dtype == torch.int32
    pages = a.tables.view(-1)[int(a.rows[row, 1]) :][: -(-end // a.PAGE)]
    assert len(pages) == -(-end // a.PAGE), "pages that are not there"
    return (pages[:, None] * a.PAGE + torch.arange(a.PAGE)).view(-1)[:end]


def _index_scores(a: Any, grid: Grid) -> None:
    count, scores = grid[0], a.scores.view(-1, a.width)
    assert len(grid) == 2 and a.queries.shape == (count, a.HEADS, a.D) and a.weights.shape == (count, a.HEADS)
    assert a.rows.shape == (count, 2) and len(scores) == count and scores.dtype == torch.int32
    keys = a.keys.view(-1, a.D)
    for row in range(count):
        position = int(a.rows[row, 0])
        if position < a.most:
            continue
        assert position < a.width
        places = _token_places(a, row, position + 1).long()
        assert int(places.max()) < len(keys) - a.PAGE, "tokens of the padding page"
        products = keys[places].float() @ a.queries[row].float().T
        found = (products.clamp(min=0) @ a.weights[row]).nan_to_num(nan=torch.finfo(torch.float32).min) + 0.0
        bits = found.view(torch.int32)
        scores[row, : position + 1] = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _choose_places(a: Any, grid: Grid) -> None:
    count, scores = grid[0], a.scores.view(-1, a.width)
    assert len(grid) == 1 and a.rows.shape == (count, 2) and a.places.shape == (count, a.most)
    for row in range(count):
        end = int(a.rows[row, 0]) + 1
        chosen = torch.arange(end)
        if end > a.most:
            chosen = scores[row, :end].long().sort(descending=True, stable=True).indices[: a.most].sort().values
        a.places[row, : len(chosen)] = _token_places(a, row, end)[chosen]


Softmax = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # in progress: m, l, o by line


def _exp2(x: torch.Tensor) -> torch.Tensor:
    return (x * math.log(2)).exp()


def _softmax(a: Any, block: list[int], kv_head: int, first: int, end: int, window: int) -> Softmax:
    """That of a block over the keys `first` to `end`."""
    row, count, position, table = block[:4]
    assert count > 0 and count * a.GROUP <= a.M and row + count <= len(a.q), "queries that are not there"
    assert a.q.shape[1] == a.HEADS <= a.KV_HEADS * a.GROUP and a.out.shape[2] == (a.LATENT or a.D)
    stored_head = 0 if a.LATENT else kv_head
    pages = a.tables.view(-1)[table + first // a.PAGE : table + -(-end // a.PAGE)]
    assert len(pages) == -(-end // a.PAGE) - first // a.PAGE and int(pages.max()) < len(a.k_numbers) - 1
    tokens = torch.arange(first, end)
    keys, values = (
        stored.decode(
            tuple(part[pages.long(), stored_head] for part in parts), torch.empty(len(pages), a.PAGE, a.D)
        ).view(-1, a.D)[first % a.PAGE :][: len(tokens)]
        for parts in (_parts(a, "k"), _parts(a, "v"))
        for stored in (_format(a, parts[0]),)
    )
    q = a.q[row : row + count, kv_head * a.GROUP : (kv_head + 1) * a.GROUP].float().reshape(-1, a.D)
    at = (position + torch.arange(count)).repeat_interleave(len(q) // count)[:, None]
    scores = q.clone() @ keys.T * a.scale
    if a.CAP:
        scores = a.CAP * (scores * math.log(2) / a.CAP).tanh() / math.log(2)
    scores.masked_fill_((tokens > at) | ((tokens < oldest_seen(at, window)) if window else False), NOTHING)
    m = scores.amax(-1)
    weights = _exp2(scores - m.masked_fill(m == NOTHING, 0)[:, None])
    return m, weights.sum(-1), weights @ values[:, : a.out.shape[2]]


def _merged(splits: Iterable[Softmax]) -> Softmax:
    """One after the other."""
    (m, l, o), *others = splits
    for other_m, other_l, other_o in others:
        highest = m.maximum(other_m)
        fades = [_exp2(each - highest.masked_fill(highest == NOTHING, 0)) for each in (m, other_m)]
        l = l * fades[0] + other_l * fades[1]
        o = o * fades[0][:, None] + other_o * fades[1][:, None]
        m = highest
    return m, l, o


def _finish(a: Any, kv_head: int, out: torch.Tensor, softmax: Softmax) -> None:
    """Writes the result of one or more queries to their rows of `out`."""
    m, l, o = softmax
    if a.SINKS:
        assert a.sinks.shape == (a.KV_HEADS * a.GROUP,) and a.sinks.dtype == torch.float32
        sink = a.sinks.view(a.KV_HEADS, a.GROUP)[kv_head].repeat(len(l) // a.GROUP) / math.log(2)
        l = l + _exp2(sink - m)
    place = out[:, kv_head * a.GROUP : (kv_head + 1) * a.GROUP]
    place.copy_((o / l[:, None]).view(place.shape))


def _attend(a: Any, grid: Grid) -> None:
    assert len(grid) == 1 and a.num_jobs.numel() == 1
    for number in range(int(a.num_jobs)):
        which, first, splits, partial = a.jobs[number].tolist()
        row, count, position, table = a.blocks[which].tolist()[:4]
        assert count * a.GROUP <= a.M and (partial < 0 or splits == 1)
        for kv_head, query in itertools.product(range(a.KV_HEADS), range(count)):
            block, end = [row + query, 1, position + query, table], position + query + 1
            lowest = max(0, oldest_seen(position + query, a.WINDOW)) if a.WINDOW else 0
            seen = [
                (max(split * a.SPLIT, lowest), min((split + 1) * a.SPLIT, end))
                for split in range(first, first + splits)
            ]
            found = [_softmax(a, block, kv_head, *tokens, a.WINDOW) for tokens in seen if tokens[0] < tokens[1]]
            if partial < 0:
                _finish(a, kv_head, a.out[row + query : row + query + 1], _merged(found))
                continue
            heads = min(a.GROUP, a.HEADS - kv_head * a.GROUP)
            lines = slice(query * heads, (query + 1) * heads)
            assert partial < len(a.partial_m) and lines.stop <= a.lines == a.partial_m.shape[2]
            nothing = torch.tensor(NOTHING), torch.tensor(0.0), torch.tensor(0.0)
            for place, numbers in zip((a.partial_m, a.partial_l, a.partial_o), (*found, nothing)[0], strict=True):
                place[partial, kv_head, lines] = numbers
    _merge(a, {which for which, _, _, partial in a.jobs[: int(a.num_jobs)].tolist() if partial >= 0})


def _merge(a: Any, divided: set[int]) -> None:
    assert a.partials_stored.shape == a.partial_m.shape[:2] and not a.partials_stored.any()
    for which in divided:
        row, count, _, _, first, partials = a.blocks[which].tolist()
        assert partials > 0 and first + partials <= len(a.partial_m)
        for kv_head in range(a.KV_HEADS):
            lines = count * min(a.GROUP, a.HEADS - kv_head * a.GROUP)
            stored = [
                (
                    a.partial_m[each, kv_head, :lines],
                    a.partial_l[each, kv_head, :lines],
                    a.partial_o[each, kv_head, :lines],
                )
                for each in range(first, first + partials)
            ]
            _finish(a, kv_head, a.out[row : row + count], _merged(stored))


def _prefill(a: Any, grid: Grid) -> None:
    assert grid == (a.KV_HEADS, len(a.blocks))
    for block in a.blocks.tolist():
        lowest = max(0, oldest_seen(block[2], a.WINDOW)) if a.WINDOW else 0
        for kv_head in range(a.KV_HEADS):
            softmax = _softmax(a, block, kv_head, lowest, block[2] + block[1], a.WINDOW)
            _finish(a, kv_head, a.out[block[0] : block[0] + block[1]], softmax)


def _numbers(a: Any) -> torch.Tensor:
    """A matrix of int8 `[out, groups, G]` before the scales of channels."""
    q = a.q.view(len(a.q), a.groups, -1).float()
    return q * a.scale.float()[..., None] if a.GROUPED else q


def _in_words(a: Any) -> torch.Tensor:
    """A matrix of 4 bits `[out, columns and more]`."""
    words = a.q.view(len(a.q), -1, 32).int()
    digits = torch.stack([words >> 4 * i & 15 for i in range(4)], dim=2).view(*a.scale.shape, a.G)
    numbers = digits - a.SHIFT if DIGITS.value == a.HOLD else a.table[digits.long()]
    assert (a.scale.dtype == E8M0) == a.POWERS
    return (numbers * scales(a.scale)[..., None] + (a.least.float()[..., None] if a.LEAST else 0)).flatten(1)


def _quantized_product(a: Any, grid: Grid) -> None:
    assert a.x.shape == (a.rows, a.columns) and len(a.q) == a.outputs
    assert a.out.shape == (a.rows, a.outputs // (2 if a.GATE else 1))
    assert a.M * grid[0] >= a.rows and a.N * grid[1] >= a.outputs and a.each * grid[2] * a.split >= a.groups
    x = torch.nn.functional.pad(a.x.float(), (0, a.groups * a.G - a.columns)).view(a.rows, a.groups, a.G)
    of_groups = torch.einsum("rgi,ogi->gro", x, _numbers(a))
    parts = torch.stack([part.sum(0) for part in of_groups.split(a.split)])
    _put_together(a, grid, parts, 1.0 if a.GROUPED else a.scale.float().view(1, -1))


def _words_product(a: Any, grid: Grid) -> None:
    assert a.x.shape == (a.rows, a.columns) and len(a.q) == a.outputs
    assert a.out.shape == (a.rows, a.outputs // (2 if a.GATE else 1))
    assert a.M * grid[0] >= a.rows and a.N * grid[1] >= a.outputs and a.each * grid[2] * a.split >= a.blocks
    pairs = zip(a.x.float().split(128 * a.split, 1), _in_words(a)[:, : a.columns].split(128 * a.split, 1), strict=True)
    _put_together(a, grid, torch.stack([x @ w.T for x, w in pairs]), 1.0)


def _product(a: Any, grid: Grid) -> None:
    assert a.x.shape == (a.rows, a.columns) and a.w.shape == (a.outputs, a.columns)
    assert a.M * grid[0] >= a.rows and a.N * grid[1] >= a.outputs and a.each * grid[2] * a.split >= a.columns
    pairs = zip(a.x.float().split(a.split, 1), a.w.float().split(a.split, 1), strict=True)
    parts = torch.stack([x @ w.T for x, w in pairs])
    _put_together(a, grid, parts, a.scale.view(1, -1) if a.SCALED else 1.0)


def _put_together(a: Any, grid: Grid, parts: torch.Tensor, scale: torch.Tensor | float) -> None:
    if grid[2] == 1:
        a.out.copy_(parts.sum(0) * scale)
        return
    assert a.partial.shape == parts.shape
    a.partial.copy_(parts)
    if hasattr(a, "counters"):
        assert grid[0] * grid[1] <= len(a.counters) and not a.counters.any()
        product = (parts.sum(0) * scale).to(a.out.dtype)
        if a.GATE:
            gate, up = product.float().chunk(2, 1)
            product = silu(gate) * up
        a.out.copy_(product)


def _add_up(a: Any, grid: Grid) -> None:
    assert len(a.partial) == a.splits and a.BLOCK * grid[1] >= a.outputs and grid[0] == a.rows
    a.out.copy_(a.partial.sum(0) * (a.scale.float().view(1, -1) if a.SCALED else 1.0))


def _plain(a: Any, grid: Grid) -> None:
    assert grid[0] == len(a.q) and a.BLOCK * grid[1] >= a.columns
    if a.INT4:
        hold = (TABLE if a.CODED else DIGITS).value
        numbers = _in_words(SimpleNamespace(**{**vars(a), "HOLD": hold, "SHIFT": 0}))[:, : a.columns]
    else:
        numbers = _numbers(a).view(len(a.q), -1)[:, : a.columns] * (1 if a.GROUPED else a.scale.float().view(-1, 1))
    a.out.copy_(numbers)


def _route(a: Any, grid: Grid) -> None:
    assert a.logits.shape == (grid[0], a.experts) and a.experts <= a.E_PAD and a.T_PAD >= a.PER_ROW
    score: Any = ("softmax", "sigmoid", "mixer")[a.SCORE]
    rules = Experts(
        a.experts, a.PER_ROW, 1, a.NORMALIZED, (), score, a.BIASED, a.GROUPS, a.GROUPS_PER_ROW, a.scale, a.jitter,
        best_of_group=a.BEST,
    )  # fmt: skip
    weights = a.weights if a.WEIGHED else None
    shares, chosen = choose(a.logits, a.bias if a.BIASED else None, weights, rules)
    a.shares.copy_(shares)
    a.chosen.copy_(chosen)


def _arrange(a: Any, grid: Grid) -> None:
    experts = a.chosen.flatten()
    assert grid == (a.experts,) and len(experts) == a.pairs == len(a.order) and len(a.blocks) == a.most
    assert int(experts.min()) >= 0 and int(experts.max()) < a.experts < a.E_PAD
    a.order.copy_(torch.sort(experts, stable=True).indices)
    blocks, first = [], 0
    for expert, count in enumerate(experts.bincount(minlength=a.experts).tolist()):
        blocks += [[expert, first + at, first + min(at + a.M, count)] for at in range(0, count, a.M)]
        first += count
    assert len(blocks) <= a.most
    a.blocks[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    a.blocks[len(blocks) :, 0] = -1


def _weigh(a: Any, grid: Grid) -> None:
    assert a.answers.shape == (grid[0] * a.PER_ROW, a.size) and a.BLOCK * grid[1] >= a.size
    total = torch.einsum("rth,rt->rh", a.answers.float().view(grid[0], a.PER_ROW, a.size), a.shares)
    if a.SHARED:
        total += a.shared.float() * (sigmoid(a.gate.float()) if a.GATE else 1)
    a.out.copy_(total)


def _pairs_of_blocks(a: Any, grid: Grid, matrix: Callable[[int], torch.Tensor]) -> None:
    """Products of pairs with the matrix of each block's expert."""
    assert grid[0] == len(a.blocks) and a.N * grid[1] >= a.outputs
    for expert, first, end in a.blocks.tolist():
        if expert < 0:
            continue
        assert 0 < end - first <= a.M
        pairs = a.order[first:end].long()
        product = a.x[pairs // a.per_row].float() @ matrix(expert).T + (a.bias[expert].float() if a.BIASED else 0)
        if a.GATE:
            gate, up = product.split(a.outputs, 1)
            if a.GATE == CLAMPED:
                gate, up = gate.clamp(max=a.limit), up.clamp(-a.limit, a.limit) + 1
            if a.GATE == LIMITED:
                product = (gate * sigmoid(gate)).clamp(max=a.limit) * up.clamp(-a.limit, a.limit)
            elif a.GATE == GELU:
                product = gelu_tanh(gate) * up
            else:
                product = gate * sigmoid((a.alpha if a.GATE == CLAMPED else 1) * gate) * up
        if a.SQUARED:
            product = product.relu().square()
        a.out[pairs] = product.to(a.out.dtype)


def _expert_product(a: Any, grid: Grid) -> None:
    assert a.x.shape[1] == a.columns == a.w.shape[2]
    scale = a.scale.repeat_interleave(128, 2)[..., : a.columns] if GROUPS.value == a.SCALED else a.scale
    _pairs_of_blocks(a, grid, lambda e: a.w[e].float() * (scale[e] if a.SCALED else 1))


def _of_expert(a: Any, expert: int) -> Any:
    return SimpleNamespace(**{**vars(a), **{name: getattr(a, name)[expert] for name in ("q", "scale")}})


def _int8_expert_product(a: Any, grid: Grid) -> None:
    assert a.x.shape[1] == a.columns

    def matrix(expert: int) -> torch.Tensor:
        of = _of_expert(a, expert)
        return _numbers(of).flatten(1)[:, : a.columns] * (1 if a.GROUPED else of.scale.float())

    _pairs_of_blocks(a, grid, matrix)


def _words_expert_product(a: Any, grid: Grid) -> None:
    assert a.x.shape[1] == a.columns

    def matrix(expert: int) -> torch.Tensor:
        of = _of_expert(a, expert)
        of.least = a.least[expert] if a.LEAST else None
        return _in_words(of)[:, : a.columns]

    _pairs_of_blocks(a, grid, matrix)


def _rows_to_float8(a: Any, grid: Grid) -> None:
    _store_as_float8(a.q, a.scale, a.x.view(grid[0], a.size))


def scaled_product(
    rows: torch.Tensor,
    matrix: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: None,
    scale_result: None,
    out_dtype: torch.dtype,
    *_: bool,
) -> torch.Tensor:
    """`torch._scaled_mm` with a scale for each row and column, and what a card asks of it."""
    assert rows.dtype == matrix.dtype == torch.float8_e4m3fn and out_dtype == torch.bfloat16
    assert rows.is_contiguous() and matrix.t().is_contiguous(), "one by rows, the other by columns"
    assert matrix.shape[0] % 16 == 0 and matrix.shape[1] % 16 == 0
    assert scale_a.shape == (len(rows), 1) and scale_b.shape == (1, matrix.shape[1])
    return ((rows.float() @ matrix.float()) * scale_a * scale_b).to(out_dtype)


KERNELS: dict[str, Callable[[Any, Grid], None]] = {
    each.__name__: each
    for each in (
        _add_norm, _swiglu, _swiglu_float8, _survey, _decide, _add_at, _store, _attend, _prefill,
        _store_latents, _head_product, _index_scores, _choose_places,
        _quantized_product,
        _product, _add_up, _plain, _rows_to_float8, _route, _arrange, _weigh, _expert_product, _words_product,
        _int8_expert_product, _words_expert_product,
    )
} | states_in_torch.KERNELS  # fmt: skip
