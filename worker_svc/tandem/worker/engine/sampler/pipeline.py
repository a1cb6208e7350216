"""Turns logits into the next token, for all rows of a step at once.

The stages, in llama.cpp's default order; a stage runs only if some row uses it:

    constraints   grammar mask, allowed ids, stops before min_tokens, banned ids and sequences, logit bias
    penalties     repetition, presence, frequency
    DRY
    filters       top_n_sigma, top_k, tail_free_z, typical_p, top_p, min_p, top_a, XTC; or mirostat in their place
    temperature   fixed or dynamic; before the filters with temperature_last = false, and for mirostat
    draw          one uniform number; temperature 0 takes the largest; adaptive_p aims at a probability

llama.cpp had tail_free_z there until it removed it; it never had top_a, which stands beside its like.

On a CPU, rows that ask for what most ask for are drawn by one compiled call (`on_cpu.py`). Else
filters work on the few hundred largest logits of a row (`ordered.py`) and on its whole vocabulary only where these do
not decide. Every operation is row-wise, and sums over the vocabulary are added in an order of their own (`sums.py`):
a row's token does not depend on its company. A draw depends on (seed, position) alone, so that a request draws the
same wherever it runs; mirostat and adaptive_p alone keep a state, in the table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.randomness import uniform
from tandem.worker.engine.sampler import adaptive_p, mirostat, on_cpu
from tandem.worker.engine.sampler.constraints import constrain
from tandem.worker.engine.sampler.draw import Distribution, draw_aimed, draw_kept, draw_wide, has_kernel
from tandem.worker.engine.sampler.dry import penalize_continuations
from tandem.worker.engine.sampler.filters import CHAIN, Filter
from tandem.worker.engine.sampler.logprobs import Told, report, whole
from tandem.worker.engine.sampler.ordered import Ordered, candidates, in_order
from tandem.worker.engine.sampler.penalties import penalize
from tandem.worker.engine.sampler.rows import Alternatives, Rows, Sampled
from tandem.worker.engine.sampler.table import Parameters, SamplingTable, column
from tandem.worker.engine.sampler.temperature import COLDEST, effective
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice

_BLOCK = 1 << 20  # logits that are ordered as a whole at once


def sample(logits: torch.Tensor, rows: Rows, table: SamplingTable, parameters: Parameters | None = None) -> Sampled:
    """Draws the token of each row from `logits` `[>= len(rows), vocabulary]` (float32; overwritten). `parameters` are
    what the table has for the rows, where that was gathered already."""
    count = len(rows)
    logits = logits[:count]
    parameters = table.gather(rows.requests) if parameters is None else parameters
    reported = np.flatnonzero(parameters["reports"])
    changed = bool(changes_logits(rows, parameters).any())
    raw, processed = _kinds_of_logprobs(rows, reported)
    told = [Told(raw, logits, raw)]
    if not changed and on_cpu.serves(logits, parameters).all():
        drawn_here = on_cpu.draw(logits, parameters, rows.positions)
        if not reported.size:
            return Sampled.unreported(drawn_here.ids, drawn_here.finite)
        result = Sampled.plain(drawn_here.ids, drawn_here.finite, np.ones(count, np.bool_))
        told.append(Told(processed, logits, processed, on_cpu.distribution(drawn_here, parameters)))
        return _with_logprobs(result, rows, told)
    greedy = takes_the_largest(parameters)
    scaled = ~parameters["temperature_last"] & ~greedy
    if raw.size and (changed or scaled.any()):
        told = [Told(raw, logits[torch.from_numpy(raw).to(logits.device)], np.arange(raw.size))]
    largest = logits.amax(dim=-1)  # a NaN anywhere in a row comes out here
    finite = torch.isfinite(largest).cpu().numpy()

    if changed:
        constrain(logits, rows, parameters, table)
        penalize(logits, rows, parameters)
        penalize_continuations(logits, rows, parameters, table)
        largest = logits.amax(dim=-1)
    possible = (largest > float("-inf")).cpu().numpy() | ~finite

    sound = finite & possible
    if (first := np.flatnonzero(sound & scaled)).size:
        _scale(logits, parameters, first)
    ids = torch.zeros(count, dtype=torch.int64, device=logits.device)
    distribution = Distribution.of_largest(largest)
    if (rest := np.flatnonzero(greedy | ~sound)).size:
        places = torch.from_numpy(rest).to(logits.device)
        ids[places] = _argmax(_rows_of(logits, rest))
    if (drawn := np.flatnonzero(sound & ~greedy)).size:
        places = torch.from_numpy(drawn).to(logits.device)
        ids[places], of = _draw(_rows_of(logits, drawn), parameters[drawn], rows.positions[drawn])
        distribution.put(places, of)
        _learn(logits, ids, distribution, parameters, table, drawn)

    result = Sampled.plain(ids.cpu().numpy().astype(np.int32), finite, possible)
    if processed.size:
        aims = distribution.aims.cpu().numpy()[processed]  # apart: a row is told of alike in any company
        told += [Told(of, logits, of, distribution) for of in (processed[~aims], processed[aims])]
    return _with_logprobs(result, rows, told)


def largest(logits: torch.Tensor, rows: int) -> Sampled:
    """Returns the tokens of the first rows on a CPU, which just take the largest (`SamplingTable.take_the_largest`): a
    step of a small model takes little longer than a few calls to torch."""
    if native.available() and logits.dtype == torch.float32:
        return Sampled.unreported(*choice.first_largest(logits, rows))
    numbers = logits[:rows].float().numpy()
    places = numbers.argmax(axis=-1)
    finite = np.isfinite(numbers[np.arange(rows), places])  # the first NaN of a row counts as the largest
    return Sampled.unreported(places.astype(np.int32), finite)


def changes_logits(rows: Rows, parameters: Parameters) -> npt.NDArray[np.bool_]:
    """Tells which rows' logits are changed before anything is chosen; most rows have none of this."""
    changes: npt.NDArray[np.bool_] = parameters["changes"] | (rows.positions < parameters["min_position"])
    return changes | (rows.mask is not None)


def takes_the_largest(parameters: Parameters) -> npt.NDArray[np.bool_]:
    """Tells which rows draw nothing."""
    greedy: npt.NDArray[np.bool_] = parameters["greedy"]
    return greedy


def _rows_of(logits: torch.Tensor, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    return logits if rows.size == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if has_kernel(logits):  # of several, torch takes any
        from tandem.worker.model.cuda.kernels.choose import choose, rules_of

        nothing = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
        return choose(logits.contiguous(), rules_of(nothing, nothing)).ids
    if logits.device.type == "cpu":  # a tenth of torch's time
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(
    logits: torch.Tensor, parameters: Parameters, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, Distribution]:
    """Draws from `logits` `[rows, vocabulary]`, whose largest is finite; each row in its own way."""
    here = on_cpu.serves(logits, parameters)
    if not here.any():
        return _draw_by_torch(logits, parameters, positions)
    if here.all():
        return on_cpu.draw_from(logits, parameters, positions)
    ids = torch.empty(len(logits), dtype=torch.int64)
    distribution = Distribution.of_largest(torch.zeros(len(logits)))
    for kind, way in ((here, on_cpu.draw_from), (~here, _draw_by_torch)):
        places = torch.from_numpy(np.flatnonzero(kind))
        ids[places], of = way(logits[places], parameters[kind], positions[kind])
        distribution.put(places, of)
    return ids, distribution


def _draw_by_torch(
    logits: torch.Tensor, parameters: Parameters, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, Distribution]:
    device = logits.device
    uniforms = torch.from_numpy(uniform(parameters["seed"], positions.astype(np.uint64))).to(device)
    ids = torch.empty(len(logits), dtype=torch.int64, device=device)
    high = logits.amax(dim=-1).double()
    low = torch.full_like(high, float("-inf"))
    fixed = np.where(parameters["temperature_last"], np.maximum(parameters["temperature"], COLDEST), 1.0)
    temperature = torch.from_numpy(fixed).to(device)
    distribution = Distribution.of_largest(high)
    wide = np.ones(len(logits), dtype=np.bool_)
    narrow = np.flatnonzero(narrows(parameters))
    if narrow.size:
        places = torch.from_numpy(narrow).to(device)
        chosen = _rows_of(logits, narrow)
        values, value_ids = candidates(chosen)
        ordered = Ordered.of(chosen, values)
        temperature[places] = _filter(ordered, parameters[narrow], positions[narrow])
        high[places] = ordered.top  # XTC may have cut what is above, and left the rest open
        settled = torch.nonzero(ordered.exact & ~ordered.open).squeeze(1)
        if settled.numel():
            at = places[settled]
            place, of = draw_kept(ordered.select(settled), temperature[at], uniforms[at])
            ids[at] = value_ids[settled].gather(1, place.unsqueeze(1)).squeeze(1)
            distribution.put(at, of)
            wide[narrow[settled.cpu().numpy()]] = False
        undecided = np.flatnonzero(~ordered.exact.cpu().numpy())
        size = max(1, _BLOCK // logits.shape[1])
        for start in range(0, undecided.size, size):
            block = narrow[undecided[start : start + size]]
            at = torch.from_numpy(block).to(device)
            whole = Ordered.of(logits[at], in_order(logits[at]))
            temperature[at] = _filter(whole, parameters[block], positions[block])
            low[at], high[at] = whole.at(whole.end - 1), whole.top
    if (broad := np.flatnonzero(wide)).size:
        at = torch.from_numpy(broad).to(device)
        ids[at], of = draw_wide(_rows_of(logits, broad), low[at], high[at], temperature[at], uniforms[at])
        distribution.put(at, of)
    if (aiming := np.flatnonzero(adaptive_p.used(parameters))).size:
        at = torch.from_numpy(aiming).to(device)
        aim = torch.from_numpy(adaptive_p.aim(parameters[aiming])).to(device)
        ids[at], of = draw_aimed(_rows_of(logits, aiming), distribution.select(at), aim, uniforms[at])
        distribution.put(at, of)
    return ids, distribution


def narrows(parameters: Parameters) -> npt.NDArray[np.bool_]:
    """Tells which rows look at the order of their logits."""
    return _look_at_order(parameters, *CHAIN)


def _look_at_order(parameters: Parameters, *chain: Filter) -> npt.NDArray[np.bool_]:
    """Tells in which rows one of these filters, mirostat, or dynamic temperature looks at the order."""
    look: npt.NDArray[np.bool_] = parameters["mirostat"] > 0
    look |= (parameters["dynamic_temperature_range"] > 0) & parameters["temperature_last"]
    for each in chain:
        look |= each.used(parameters)
    return look


def _filter(o: Ordered, parameters: Parameters, positions: npt.NDArray[np.int64]) -> torch.Tensor:
    """Runs the filters over the rows of `o`; returns the temperatures that are still to be applied, `[rows]`."""
    device = o.values.device
    filtered = parameters["mirostat"] == 0
    stages = [(each.keep, filtered & each.runs(parameters, positions), each.reads or each.parameter) for each in CHAIN]
    stages += [
        (mirostat.keep_by_zipf, parameters["mirostat"] == 1, "state"),
        (mirostat.keep_by_surprise, parameters["mirostat"] == 2, "state"),
    ]
    for stage, use, name in stages:
        if use.any():
            stage(o, torch.from_numpy(use).to(device), column(parameters, name, device))
    last = column(parameters, "temperature_last", device)
    return torch.where(last, effective(o, parameters), 1.0) if bool(last.any()) else torch.ones_like(o.mass[:, 0])


def _scale(logits: torch.Tensor, parameters: Parameters, rows: npt.NDArray[np.int64]) -> None:
    """Applies the temperature of some rows before their filters, in place."""
    places = torch.from_numpy(rows).to(logits.device)
    chosen = logits[places]
    largest = chosen.amax(dim=-1, keepdim=True)
    if (parameters["dynamic_temperature_range"][rows] > 0).any():
        temperature = effective(Ordered.of(chosen, candidates(chosen)[0]), parameters[rows])
    else:
        temperature = torch.from_numpy(np.maximum(parameters["temperature"][rows], COLDEST)).to(logits.device)
    # The largest becomes 0 before the division, so that no temperature, however small, overflows.
    logits[places] = (chosen - largest).div_(temperature.float().unsqueeze(1))


def _learn(
    logits: torch.Tensor,
    ids: torch.Tensor,
    distribution: Distribution,
    parameters: Parameters,
    table: SamplingTable,
    drawn: npt.NDArray[np.int64],
) -> None:
    """Moves the state of the drawn rows that have one."""
    for used, moved in ((parameters["mirostat"] > 0, mirostat.moved), (adaptive_p.used(parameters), adaptive_p.moved)):
        rows = drawn[used[drawn]]
        if rows.size:
            places = torch.from_numpy(rows).to(logits.device)
            logprobs = distribution.select(places).before_aiming(logits[places], ids[places])
            table.set_state(parameters["slot"][rows], moved(parameters[rows], logprobs.cpu().numpy()))


def _kinds_of_logprobs(
    rows: Rows, reported: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns those of the reported rows that tell the model's own logprobs, and those that tell them after all
    stages."""
    if not reported.size:  # as in most steps
        return reported, reported
    processed = np.array([rows.requests[row].logprobs.processed for row in reported.tolist()], np.bool_)
    return reported[~processed], reported[processed]


def _with_logprobs(result: Sampled, rows: Rows, told: list[Told]) -> Sampled:
    """Fills in the logprobs of the rows that tell some."""
    order: list[int] = []
    others: list[Alternatives] = []
    for each in told:
        if not (chosen := each.rows.tolist()):
            continue
        options = [rows.requests[row].logprobs for row in chosen]
        result.logprobs[each.rows], result.ranks[each.rows], more = report(each, result.ids[each.rows], options)
        for place, row in enumerate(chosen):
            if options[place].whole:
                result.whole[row] = whole(each, place)
        order.extend(chosen)
        others.append(more)
    joined = Alternatives.joined([*others, Alternatives.nothing(1)])
    if joined.ids.size:
        # Rows that ask for nothing take the empty entry at the end.
        entries = np.full(len(rows), len(order), dtype=np.int64)
        entries[order] = np.arange(len(order))
        result.alternatives = joined.take(entries)
    return result
