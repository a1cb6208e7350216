"""Two texts in one encoding, as cross-encoders and classifiers of pairs want them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.tokenizer.arrays import Ids, ids_of, joined
from tandem.tokenizer.config import Part
from tandem.tokenizer.encoding import ARRAYS, Encoding, TruncationError


def shares(first: int, second: int, most: int) -> tuple[int, int]:
    """Returns how many of the ids of two texts are kept of `most` together: the longer one is cut first, as in the
    `tokenizers` library."""
    if first + second <= most:
        return first, second
    less = min(first, second, most // 2)
    return (less, most - less) if first <= second else (most - less, less)


def pair_encoding(parts: Sequence[Part], texts: Sequence[Encoding], sizes: Sequence[tuple[int, int]]) -> Encoding:
    """Joins the encodings of two texts, made without special tokens, by the parts around them. `sizes` are those of
    the texts in bytes and code points: the second one's positions go on behind the first."""
    left = iter(zip(texts, sizes, strict=True))
    located = texts[0].byte_offset_array is not None
    arrays: dict[str, list[Ids]] = {name: [] for name in ("id_array", "type_id_array", *ARRAYS)}
    at = dict.fromkeys(ARRAYS, 0)
    for part in parts:
        if part.token is None:
            text, (size_in_bytes, size) = next(left)
            arrays["id_array"].append(text.id_array)
            arrays["type_id_array"].append(np.full(len(text.id_array), part.type_id, np.uint32))
            for name in ARRAYS if located else ():
                arrays[name].append(getattr(text, name) + np.uint32(at[name]))
                at[name] += size_in_bytes if name.startswith("byte") else size
        else:
            arrays["id_array"].append(ids_of([part.token]))
            arrays["type_id_array"].append(ids_of([part.type_id]))
            for name in ARRAYS if located else ():
                arrays[name].append(ids_of([at[name]]))
    added = len(parts) - 2
    found = Encoding(joined(arrays.pop("id_array")))
    for name, each in arrays.items():
        if each:
            setattr(found, name, joined(each))
    found.total_tokens = sum(text.total_tokens for text in texts) + added
    return found


def truncated(texts: Sequence[Encoding], most: int, added: int, left: bool) -> None:
    """Cuts two texts so that they have at most `most` ids with the `added` ones. Raises TruncationError."""
    if most < added:
        raise TruncationError(f"at least {added} tokens are needed, because add_special adds that many to a pair")
    first, second = texts
    for text, share in zip(texts, shares(len(first.id_array), len(second.id_array), most - added), strict=True):
        text.truncate(share, left)
