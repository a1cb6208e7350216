"""Encode, BatchEncode and CountTokens behind their wire: small inputs at once, others by threads, answers as bytes.

Answers are serialized where they are made, in the threads. Serialized messages that are joined are the merged message:
repeated fields follow one another. So the parts of an answer are never gathered in one place before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from svc_common.errors import FieldViolation, invalid_argument, resource_exhausted
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tokenizer_svc.arrays import NONE, Ids, joined
from tokenizer_svc.encoding import Encoding, Policy, Segment, SpecialTokenInText
from tokenizer_svc.loaded import Loaded
from tokenizer_svc.pool import PoolFullError, WorkPool
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.validation import EncodeJob, too_much_output
from tokenizer_svc.wire import encoding_field, plain_encodings

T = TypeVar("T")

_SHARED_BYTES = 128 * 1024  # text that several threads share


class EncodeCalls:
    """For one event loop."""

    def __init__(self, settings: TokenizerSettings, pool: WorkPool) -> None:
        self._settings = settings
        self._pool = pool

    async def encode(self, loaded: Loaded, job: EncodeJob, offsets: bool, pieces: bool) -> bytes:
        """An EncodeResponse. Raises ServiceError."""
        plain = not offsets and not pieces and job.max_tokens is None
        if plain and (parts := self._parts(loaded, job)) is not None:
            return await self._encode_parts(loaded, job, parts)

        def work(jobs: Sequence[EncodeJob]) -> tuple[bytes, int]:
            encoding = _encode(loaded, jobs[0], offsets)
            return b"".join(self._field(loaded, encoding, pieces)), encoding.total_tokens

        return await self._answer(loaded, [job], work, pb.EncodeResponse(fingerprint=loaded.tokenizer.fingerprint))

    async def encode_batch(self, loaded: Loaded, jobs: Sequence[EncodeJob], offsets: bool, pieces: bool) -> bytes:
        """A BatchEncodeResponse. Raises ServiceError."""

        def work(jobs: Sequence[EncodeJob]) -> tuple[bytes, int]:
            together = None if offsets or pieces else _encode_together(loaded, jobs)
            if together is not None:
                return b"".join(plain_encodings(together)), sum(map(len, together))
            parts: list[bytes] = []
            total = 0
            for job in jobs:
                encoding = _encode(loaded, job, offsets)
                total += encoding.total_tokens
                parts += self._field(loaded, encoding, pieces)
            return b"".join(parts), total

        return await self._answer(loaded, jobs, work, pb.BatchEncodeResponse(fingerprint=loaded.tokenizer.fingerprint))

    async def count(self, loaded: Loaded, jobs: Sequence[EncodeJob]) -> list[int]:
        """How many ids each job has. Raises ServiceError."""

        def work(jobs: Sequence[EncodeJob]) -> list[tuple[int, int]]:
            together = _encode_together(loaded, jobs)
            if together is not None:
                return [(len(ids), len(ids)) for ids in together]
            encodings = [_encode(loaded, job, False) for job in jobs]
            return [(len(encoding.id_array), encoding.total_tokens) for encoding in encodings]

        counts = [each for group in await self._spread(loaded, jobs, work) for each in group]
        loaded.metrics.encoded_tokens.inc(sum(total for _, total in counts))
        return [count for count, _ in counts]

    async def in_pool(self, functions: list[Callable[[], T]]) -> list[T]:
        """The results of functions that threads run. Raises RESOURCE_EXHAUSTED where too many wait."""
        try:
            return await self._pool.run_all(functions)
        except PoolFullError as error:
            raise resource_exhausted(str(error), reason="QUEUE_FULL", retry_after=error.retry_after) from None

    def pieces(self, loaded: Loaded, ids: Sequence[int]) -> list[bytes]:
        """The pieces of an answer. Raises RESOURCE_EXHAUSTED where they are too long for one."""
        pieces = loaded.tokenizer.pieces(ids)
        if (size := sum(map(len, pieces))) > self._settings.max_output_bytes:
            raise too_much_output("pieces", size, self._settings)
        return pieces

    async def _answer(
        self,
        loaded: Loaded,
        jobs: Sequence[EncodeJob],
        work: Callable[[Sequence[EncodeJob]], tuple[bytes, int]],
        rest: pb.EncodeResponse | pb.BatchEncodeResponse,
    ) -> bytes:
        made = await self._spread(loaded, jobs, work)
        loaded.metrics.encoded_tokens.inc(sum(total for _, total in made))
        return b"".join([*(part for part, _ in made), rest.SerializeToString()])

    async def _spread(
        self, loaded: Loaded, jobs: Sequence[EncodeJob], work: Callable[[Sequence[EncodeJob]], T]
    ) -> list[T]:
        """Does the work at once where it is small, else in as many threads as it can fill."""
        total = sum(job.size for job in jobs)
        loaded.metrics.encoded_bytes.inc(total)
        if total <= self._settings.inline_bytes:
            return [work(jobs)]
        groups = _groups(jobs, min(self._pool.threads, 1 + total // max(1, self._settings.inline_bytes)))
        return await self.in_pool([partial(work, group) for group in groups])

    def _parts(self, loaded: Loaded, job: EncodeJob) -> list[Segment] | None:
        """A text so large that several threads should share it, where it can be cut."""
        if job.size < _SHARED_BYTES or len(job.segments) != 1 or self._pool.threads == 1:
            return None
        [segment] = job.segments
        if segment.policy == Policy.REJECT:  # names a place in the whole
            return None
        texts = loaded.tokenizer.cut(segment.text, self._pool.threads)
        return [segment._replace(text=text) for text in texts] if len(texts) > 1 else None

    async def _encode_parts(self, loaded: Loaded, job: EncodeJob, parts: list[Segment]) -> bytes:
        tokenizer = loaded.tokenizer
        front, back = tokenizer.added_ids() if job.add_special else (NONE, NONE)

        def work(number: int) -> tuple[bytes, int]:
            ids = [tokenizer.encode_segments((parts[number],), add_special=False).id_array]
            if number == 0:
                ids.insert(0, front)
            if number == len(parts) - 1:
                ids.append(back)
            whole = joined(ids)
            return b"".join(encoding_field(whole, total_tokens=0)), len(whole)

        made = await self.in_pool([partial(work, number) for number in range(len(parts))])
        total = sum(count for _, count in made)
        loaded.metrics.encoded_bytes.inc(job.size)
        loaded.metrics.encoded_tokens.inc(total)
        loaded.metrics.input_tokens.observe(total)
        rest = pb.EncodeResponse(encoding=pb.Encoding(total_tokens=total), fingerprint=tokenizer.fingerprint)
        return b"".join([*(part for part, _ in made), rest.SerializeToString()])

    def _field(self, loaded: Loaded, encoding: Encoding, with_pieces: bool) -> list[bytes]:
        return encoding_field(
            encoding.id_array,
            encoding.total_tokens,
            encoding.byte_offset_array,
            encoding.code_point_offset_array,
            self.pieces(loaded, encoding.ids) if with_pieces else (),
            encoding.truncated,
        )


def _encode(loaded: Loaded, job: EncodeJob, with_offsets: bool) -> Encoding:
    """Encoded, truncated as the input asks for, and counted."""
    try:
        encoding = loaded.tokenizer.encode_segments(job.segments, job.add_special, with_offsets)
    except SpecialTokenInText as error:
        field = f"{job.field}.segments[{error.segment}].text"
        raise invalid_argument([FieldViolation(field, f"{error}, and the segment's policy is REJECT")]) from None
    if job.max_tokens is not None:
        encoding.truncate(job.max_tokens, job.cut_left)
    loaded.metrics.input_tokens.observe(encoding.total_tokens)
    return encoding


def _encode_together(loaded: Loaded, jobs: Sequence[EncodeJob]) -> list[Ids] | None:
    """The ids of texts that want nothing but to be encoded; None where one of them wants more."""
    add_special = jobs[0].add_special
    if len(jobs) == 1 or not all(
        job.max_tokens is None and len(job.segments) == 1 and job.segments[0].policy is Policy.TEXT
        and job.add_special == add_special
        for job in jobs
    ):  # fmt: skip
        return None
    together = loaded.tokenizer.encode_many([job.segments[0].text for job in jobs], add_special)
    if together is not None:
        loaded.metrics.input_tokens.observe(*map(len, together))
    return together


def _groups(jobs: Sequence[EncodeJob], count: int) -> list[Sequence[EncodeJob]]:
    """The jobs in order, in at most `count` groups of about equal size; none is empty."""
    share = sum(job.size for job in jobs) / count
    groups: list[Sequence[EncodeJob]] = []
    start, size = 0, 0
    for index, job in enumerate(jobs):
        size += job.size
        if size >= share * (len(groups) + 1) and len(groups) < count - 1:
            groups.append(jobs[start : index + 1])
            start = index + 1
    if start < len(jobs):
        groups.append(jobs[start:])
    return groups
