"""Serves Encode, BatchEncode and CountTokens: small inputs at once, others in threads; the answers are bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from tandem.common.errors import FieldViolation, invalid_argument, resource_exhausted
from tandem.common.request_log import tell
from tandem.tokenizer.arrays import NONE, Ids, joined
from tandem.tokenizer.encoding import Encoding, Policy, Segment, SpecialTokenInText
from tandem.tokenizer.rpc.loaded import Loaded
from tandem.tokenizer.rpc.pool import PoolFullError, WorkPool
from tandem.tokenizer.rpc.validation import EncodeJob, PlainTexts, have_little, plain_text, too_much_output
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.wire import PIECES, encoding_field, plain_encodings

T = TypeVar("T")
Input = TypeVar("Input")

_SHARED_BYTES = 128 * 1024  # text that several threads share
_AT_ONCE_CHARACTERS = 256 * 1024  # of a batch, that one thread encodes in one go
_PART_BYTES = 16  # of text, which take as long as what a segment costs beside its text


class EncodeCalls:
    """Serves the calls of one event loop."""

    def __init__(self, settings: TokenizerSettings, pool: WorkPool) -> None:
        self._settings = settings
        self._longest_at_once = min(settings.inline_bytes, settings.max_input_bytes)  # bytes of a text
        self._pool = pool

    def encode_little(self, loaded: Loaded, request: pb.EncodeRequest) -> tuple[bytes, int] | None:
        """Returns the EncodeResponse and its number of tokens where the ids alone of one small plain text are asked
        for, as nearly always; None where more is."""
        plain = plain_text(request.input, self._longest_at_once)
        if plain is None or request.include_offsets or request.include_pieces:
            return None
        text, size, add_special = plain
        ids = loaded.tokenizer.encode_segments((Segment(text),), add_special).id_array
        loaded.metrics.encoded.add_input(size, len(ids))
        return b"".join([*encoding_field(ids, len(ids)), loaded.fingerprint_field]), len(ids)

    async def encode(self, loaded: Loaded, job: EncodeJob, offsets: bool, pieces: bool) -> bytes:
        """Returns an EncodeResponse. Raises ServiceError."""
        plain = not offsets and not pieces and job.max_tokens is None
        if plain and (parts := self._parts(loaded, job)) is not None:
            return await self._encode_parts(loaded, job, parts)

        def work(jobs: Sequence[EncodeJob]) -> tuple[bytes, int]:
            encoding = _encode(loaded, jobs[0], offsets)
            return b"".join(self._field(loaded, encoding, pieces)), encoding.total_tokens

        return await self._answer(loaded, [job], work, pb.EncodeResponse(fingerprint=loaded.tokenizer.fingerprint))

    async def encode_batch(self, loaded: Loaded, jobs: Sequence[EncodeJob], offsets: bool, pieces: bool) -> bytes:
        """Returns a BatchEncodeResponse. Raises ServiceError."""

        def work(jobs: Sequence[EncodeJob]) -> tuple[bytes, int]:
            parts: list[bytes] = []
            total = 0
            for job in jobs:
                encoding = _encode(loaded, job, offsets)
                total += encoding.total_tokens
                parts += self._field(loaded, encoding, pieces)
            return b"".join(parts), total

        return await self._answer(loaded, jobs, work, pb.BatchEncodeResponse(fingerprint=loaded.tokenizer.fingerprint))

    async def encode_texts(self, loaded: Loaded, plain: PlainTexts) -> bytes:
        """Returns a BatchEncodeResponse. Raises ServiceError."""
        front, back = loaded.tokenizer.added_ids() if plain.add_special else (NONE, NONE)
        added = len(front) + len(back)

        def work(texts: Sequence[str]) -> tuple[bytes, int]:
            parts: list[bytes] = []
            total = 0
            for few in _few_at_once(texts):
                found = loaded.tokenizer.encode_many(few, add_special=False)
                counts = [len(ids) + added for ids in found]
                loaded.metrics.encoded.add_inputs(*counts)
                parts += plain_encodings(found, front, back)
                total += sum(counts)
            return b"".join(parts), total

        made = await self._spread(loaded, plain.texts, plain.sizes, len(plain.texts), work)
        _count(loaded, sum(total for _, total in made))
        rest = pb.BatchEncodeResponse(fingerprint=loaded.tokenizer.fingerprint)
        return b"".join([*(part for part, _ in made), rest.SerializeToString()])

    async def count_texts(self, loaded: Loaded, plain: PlainTexts) -> list[int]:
        """Returns how many ids each text has. Raises ServiceError."""
        added = loaded.tokenizer.count_added() if plain.add_special else 0

        def work(texts: Sequence[str]) -> list[int]:
            return [
                len(ids) + added
                for few in _few_at_once(texts)
                for ids in loaded.tokenizer.encode_many(few, add_special=False)
            ]

        counts = list(chain.from_iterable(await self._spread(loaded, plain.texts, plain.sizes, len(plain.texts), work)))
        loaded.metrics.encoded.add_inputs(*counts)
        _count(loaded, sum(counts))
        return counts

    async def count(self, loaded: Loaded, jobs: Sequence[EncodeJob]) -> list[int]:
        """Returns how many ids each job has. Raises ServiceError."""

        def work(jobs: Sequence[EncodeJob]) -> list[tuple[int, int]]:
            encodings = [_encode(loaded, job, False) for job in jobs]
            return [(len(encoding.id_array), encoding.total_tokens) for encoding in encodings]

        counts = [each for group in await self._spread_jobs(loaded, jobs, work) for each in group]
        _count(loaded, sum(total for _, total in counts))
        return [count for count, _ in counts]

    async def in_pool(self, functions: list[Callable[[], T]]) -> list[T]:
        """Runs functions in threads and returns their results. Raises RESOURCE_EXHAUSTED where too many wait."""
        try:
            return await self._pool.run_all(functions)
        except PoolFullError as error:
            raise resource_exhausted(str(error), reason="QUEUE_FULL", retry_after=error.retry_after) from None

    def is_little(self, size: int, segments: int) -> bool:
        """Returns True when so much text in so many segments is encoded without a thread."""
        return size <= self._settings.inline_bytes and (segments - 1) * _PART_BYTES <= self._settings.inline_bytes

    async def read(self, inputs: Sequence[pb.EncodeInput], read: Callable[[], T]) -> T:
        """Calls `read` on the inputs of a request, whose number is checked: at once where they are small, else in a
        thread. Raises ServiceError."""
        return read() if have_little(inputs) else (await self.in_pool([read]))[0]

    def pieces(self, loaded: Loaded, ids: Ids, tag: bytes) -> bytes:
        """Returns the pieces of an answer as fields of this tag. Raises RESOURCE_EXHAUSTED where they are too long for
        one."""
        if (size := loaded.tokenizer.pieces_size(ids)) > self._settings.max_output_bytes:
            raise too_much_output("pieces", size, self._settings)
        return loaded.tokenizer.piece_fields(ids, tag)

    async def _answer(
        self,
        loaded: Loaded,
        jobs: Sequence[EncodeJob],
        work: Callable[[Sequence[EncodeJob]], tuple[bytes, int]],
        rest: pb.EncodeResponse | pb.BatchEncodeResponse,
    ) -> bytes:
        made = await self._spread_jobs(loaded, jobs, work)
        _count(loaded, sum(total for _, total in made))
        return b"".join([*(part for part, _ in made), rest.SerializeToString()])

    async def _spread_jobs(
        self, loaded: Loaded, jobs: Sequence[EncodeJob], work: Callable[[Sequence[EncodeJob]], T]
    ) -> list[T]:
        segments = sum(len(job.segments) + len(job.pair) for job in jobs)
        return await self._spread(loaded, jobs, [job.size for job in jobs], segments, work)

    async def _spread(
        self,
        loaded: Loaded,
        inputs: Sequence[Input],
        sizes: Sequence[int],
        segments: int,
        work: Callable[[Sequence[Input]], T],
    ) -> list[T]:
        """Does the work at once where it is small, else in as many threads as it can fill. `sizes` are in bytes,
        `segments` counts those of all inputs."""
        total = sum(sizes)
        loaded.metrics.encoded.add(size=total)
        if self.is_little(total, segments):
            return [work(inputs)]
        groups = _groups(inputs, sizes, min(self._pool.threads, 1 + total // max(1, self._settings.inline_bytes)))
        return await self.in_pool([partial(work, group) for group in groups])

    def _parts(self, loaded: Loaded, job: EncodeJob) -> list[Segment] | None:
        """Cuts a text that is so large that several threads should share it, where that is possible."""
        if job.size < _SHARED_BYTES or len(job.segments) != 1 or job.pair or self._pool.threads == 1:
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
        loaded.metrics.encoded.add(size=job.size)
        _count(loaded, total)
        loaded.metrics.encoded.add_inputs(total)
        rest = pb.EncodeResponse(encoding=pb.Encoding(total_tokens=total), fingerprint=tokenizer.fingerprint)
        return b"".join([*(part for part, _ in made), rest.SerializeToString()])

    def _field(self, loaded: Loaded, encoding: Encoding, with_pieces: bool) -> list[bytes]:
        return encoding_field(
            encoding.id_array,
            encoding.total_tokens,
            (
                encoding.byte_offset_array,
                encoding.code_point_offset_array,
                encoding.byte_end_array,
                encoding.code_point_end_array,
                encoding.type_id_array,
            ),
            self.pieces(loaded, encoding.id_array, PIECES) if with_pieces else b"",
            encoding.truncated,
        )


def _encode(loaded: Loaded, job: EncodeJob, with_offsets: bool) -> Encoding:
    """Encodes a job, truncates the ids as the input asks for, and counts them."""
    try:
        if job.pair:
            encoding = loaded.tokenizer.encode_pair(
                job.segments, job.pair, job.add_special, with_offsets, job.max_tokens, job.cut_left
            )
        else:
            encoding = loaded.tokenizer.encode_segments(job.segments, job.add_special, with_offsets)
            if job.max_tokens is not None:
                encoding.truncate(job.max_tokens, job.cut_left)
    except SpecialTokenInText as error:
        field = f"{job.field}.{'pair' if error.of_pair else 'segments'}[{error.segment}].text"
        raise invalid_argument([FieldViolation(field, f"{error}, and the segment's policy is REJECT")]) from None
    loaded.metrics.encoded.add_inputs(encoding.total_tokens)
    return encoding


def _count(loaded: Loaded, tokens: int) -> None:
    loaded.metrics.encoded.add(tokens=tokens)
    tell(tokenizer=loaded.name, tokens=tokens)


def _few_at_once(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields the texts in order, in groups so small that other threads do not wait long while numpy works on one."""
    start, size = 0, 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= _AT_ONCE_CHARACTERS:
            yield texts[start : index + 1]
            start, size = index + 1, 0
    if start < len(texts):
        yield texts[start:]


def _groups(inputs: Sequence[Input], sizes: Sequence[int], count: int) -> list[Sequence[Input]]:
    """Returns the inputs in order, in at most `count` groups of about equal size; none is empty."""
    share = sum(sizes) / count
    groups: list[Sequence[Input]] = []
    start, size = 0, 0
    for index, each in enumerate(sizes):
        size += each
        if size >= share * (len(groups) + 1) and len(groups) < count - 1:
            groups.append(inputs[start : index + 1])
            start = index + 1
    if start < len(inputs):
        groups.append(inputs[start:])
    return groups
