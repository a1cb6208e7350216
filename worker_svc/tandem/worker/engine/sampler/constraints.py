"""Restricts what may be chosen: grammar masks, stops before min_tokens, allowed and banned ids and sequences, and
biases.

What is forbidden gets a logit of -inf, in place. Each function takes all rows that need it at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.sampler.bounds import bounded
from tandem.worker.engine.sampler.rows import Rows
from tandem.worker.engine.sampler.sent import sent
from tandem.worker.engine.sampler.table import Ids, Lists, Parameters, SamplingTable, Words

_FORBIDDEN = float("-inf")


def constrain(logits: torch.Tensor, rows: Rows, parameters: Parameters, table: SamplingTable) -> None:
    """Applies the constraints of each row in `parameters` to `logits` `[rows, vocabulary]`, in place."""
    if rows.mask is not None:
        _apply_mask(logits, rows.mask)
    if (confined := np.flatnonzero(parameters["confined"])).size:
        places, ids = _spread(
            confined, [table.lists(slot).allowed_ids for slot in parameters["slot"][confined].tolist()]
        )
        _confine(logits, confined, places, ids)
    if (early := np.flatnonzero(rows.positions < parameters["min_position"])).size:
        _forbid(logits, *_spread(early, [table.lists(slot).stop_ids for slot in parameters["slot"][early].tolist()]))
    if (banned := np.flatnonzero(parameters["banned"])).size:
        _forbid(
            logits, *_spread(banned, [table.lists(slot).banned_ids for slot in parameters["slot"][banned].tolist()])
        )
    if (sequences := np.flatnonzero(parameters["bans_sequences"])).size:
        _forbid(logits, *_spread(sequences, [_banned_next(rows, row) for row in sequences.tolist()]))
    places, ids, added = biases(parameters, table)
    if ids.size:
        device = logits.device
        index = (torch.from_numpy(places).to(device), torch.from_numpy(ids).to(device))
        values = logits[index]
        logits[index] = bounded(values, values + torch.from_numpy(added).to(device))


def packed_masks(
    rows: Rows, parameters: Parameters, table: SamplingTable, vocabulary: int
) -> tuple[Ids, npt.NDArray[np.int32]]:
    """Returns the rows for which some ids are forbidden, and their masks `[those, ceil(vocabulary / 32)]`: what
    `constrain` does but for biases, with a bit for each id."""
    early = rows.positions < parameters["min_position"]
    listed = parameters["confined"] | parameters["banned"]
    masked = early | listed | parameters["bans_sequences"]
    if rows.mask is not None:
        masked |= (rows.mask != -1).any(axis=1)
    places = np.flatnonzero(masked)
    if not places.size:
        return places, np.empty((0, 1), dtype=np.int32)
    words = -(-vocabulary // 32)
    masks = rows.mask[places] if rows.mask is not None else np.full((places.size, words), -1, dtype=np.int32)
    for mask, row in zip(masks, places.tolist(), strict=True):
        if listed[row]:
            mask &= _listed(table.lists(parameters["slot"][row]), words)
        if early[row]:
            _clear(mask, table.lists(parameters["slot"][row]).stop_ids)
        if parameters["bans_sequences"][row]:
            _clear(mask, _banned_next(rows, row))
    return places, masks


def _listed(lists: Lists, words: int) -> Words:
    """Returns the mask of allowed and banned ids."""
    if not lists.packed:
        mask = np.full(words, 0 if lists.allowed_ids.size else -1, dtype=np.int32)
        np.bitwise_or.at(mask.view(np.uint32), lists.allowed_ids // 32, _bits(lists.allowed_ids))
        _clear(mask, lists.banned_ids)
        lists.packed.append(mask)
    return lists.packed[0]


def _clear(mask: Words, ids: Ids) -> None:
    np.bitwise_and.at(mask.view(np.uint32), ids // 32, ~_bits(ids))


def _bits(ids: Ids) -> npt.NDArray[np.uint32]:
    return np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32))


def biases(parameters: Parameters, table: SamplingTable) -> tuple[Ids, Ids, npt.NDArray[np.float32]]:
    """Returns rows, ids and biases that are added to logits, each id of a row once."""
    biased = np.flatnonzero(parameters["biased"])
    if not biased.size:
        return biased, biased, np.empty(0, dtype=np.float32)
    lists = [table.lists(slot) for slot in parameters["slot"][biased].tolist()]
    places, ids = _spread(biased, [each.bias_ids for each in lists])
    return places, ids, np.concatenate([each.biases for each in lists])


def _spread(rows: Ids, lists: list[Ids]) -> tuple[Ids, Ids]:
    """Joins the lists, and returns the row of each element beside it."""
    return np.repeat(rows, [len(each) for each in lists]), np.concatenate(lists)


def _apply_mask(logits: torch.Tensor, mask: npt.NDArray[np.int32]) -> None:
    """Forbids the ids whose bits are not set; rows with every bit set cost nothing."""
    constrained = np.flatnonzero((mask != -1).any(axis=1))
    if not constrained.size:
        return
    vocabulary, device = logits.shape[1], logits.device
    if device.type == "cpu":  # row by row it stays in the processor's cache
        numbers = logits.numpy()
        for row in constrained.tolist():
            bits = np.unpackbits(mask[row].view(np.uint8), count=vocabulary, bitorder="little")
            np.copyto(numbers[row], _FORBIDDEN, where=~bits.view(np.bool_))
        return
    words = sent(mask[constrained], device).unsqueeze(-1)
    forbidden = ((words >> torch.arange(32, device=device)) & 1).view(constrained.size, -1)[:, :vocabulary] == 0
    rows = sent(constrained, device)
    logits[rows] = logits[rows].masked_fill_(forbidden, _FORBIDDEN)


def _confine(logits: torch.Tensor, confined: Ids, places: Ids, ids: Ids) -> None:
    index = (torch.from_numpy(places).to(logits.device), torch.from_numpy(ids).to(logits.device))
    allowed = logits[index]
    logits[torch.from_numpy(confined).to(logits.device)] = _FORBIDDEN
    logits[index] = allowed


def _forbid(logits: torch.Tensor, places: Ids, ids: Ids) -> None:
    if ids.size:
        logits[torch.from_numpy(places).to(logits.device), torch.from_numpy(ids).to(logits.device)] = _FORBIDDEN


def _banned_next(rows: Rows, row: int) -> Ids:
    """Returns the last ids of the banned sequences whose beginnings stand at the end of the row's tokens."""
    request, position = rows.requests[row], int(rows.positions[row])
    longest = max(len(sequence) for sequence in request.sampling.banned_sequences) - 1
    tail = tuple(request.tokens[max(0, position - longest) : position].tolist())
    return np.array(
        [
            sequence[-1]
            for sequence in request.sampling.banned_sequences
            if len(sequence) == 1 or tail[-(len(sequence) - 1) :] == sequence[:-1]
        ],
        dtype=np.int64,
    )
