"""Many prompts at once: their results in order, or what comes of them as it comes."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Unpack, cast, overload

from tandem.client.async_stream import cancelled_by_caller
from tandem.client.deadline import Deadline
from tandem.client.errors import (
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    TandemError,
    invalid_argument,
)
from tandem.client.params import GenerateOptions
from tandem.client.pipeline import Pipeline
from tandem.client.plan import GenerationPlan
from tandem.client.signatures import spell_out_keywords
from tandem.client.types import Chunk, Encoding, GenerationResult, Prompt

_OF_ALL = {"timeout", "metadata"}  # options that one prompt cannot have for itself

OnProgress = Callable[[int, int], None]  # how many have ended, and how many there are


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """More of the answer to one prompt: one of the last three. The last event of each prompt is its result or error."""

    index: int  # of the prompt
    request_id: str
    chunk: Chunk | None = None
    result: GenerationResult | None = None
    error: TandemError | None = None


@spell_out_keywords
class AsyncBatches(ABC):
    """The calls of a client with many prompts."""

    # Somebody else must know them too, or a batch that was dropped is collected together with its tasks, none of which
    # is ended then.
    _batch_tasks: set[asyncio.Task[None]]

    @abstractmethod
    def _plan(self, prompt: Prompt, options: GenerateOptions, field: str = "prompt") -> GenerationPlan: ...

    @abstractmethod
    def _answer(
        self, plan: GenerationPlan, *, deliver_chunks: bool, encoding: Encoding | None, deadline: Deadline | None
    ) -> Pipeline: ...

    @abstractmethod
    async def _encode_prompts(self, plans: list[GenerationPlan], deadline: Deadline) -> list[Encoding | None]: ...

    @overload
    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = ...,
        each: Sequence[GenerateOptions] | None = ...,
        on_progress: OnProgress | None = ...,
        return_exceptions: Literal[False] = ...,
        **options: Unpack[GenerateOptions],
    ) -> list[GenerationResult]: ...

    @overload
    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = ...,
        each: Sequence[GenerateOptions] | None = ...,
        on_progress: OnProgress | None = ...,
        return_exceptions: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> list[GenerationResult | TandemError]: ...

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 64,
        each: Sequence[GenerateOptions] | None = None,
        on_progress: OnProgress | None = None,
        return_exceptions: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> list[GenerationResult] | list[GenerationResult | TandemError]:
        """Returns the results of many prompts, in order. At most `concurrency` run at a time; the timeout is for all of
        them together.

            >>> results = await client.generate_batch(["Once upon a time", "In the beginning"], max_tokens=8)
            >>> [result.usage.completion_tokens for result in results]
            [8, 8]

        `each` has further options for each prompt, which win over the common ones. `on_progress(ended, all)` is called
        whenever a prompt has ended. The first error cancels the other prompts and is raised; its `prompt_index` says
        which prompt it is about. With `return_exceptions` it stands in the place of its result, and the others go on.
        Request ids are the given (or a random) one followed by "-0", "-1" and so on, or those in `each`.
        """
        plans = self._plans(prompts, concurrency, each, options)
        ends: list[GenerationResult | TandemError | None] = [None] * len(plans)
        ended = 0
        events = self._events(plans, concurrency, deliver_chunks=False)
        try:
            async for event in events:
                if event.error is not None and not return_exceptions:
                    raise event.error
                ends[event.index] = event.error or event.result
                ended += 1
                if on_progress is not None:
                    on_progress(ended, len(plans))
        finally:
            await events.aclose()
        return cast(list[GenerationResult], ends)

    def stream_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 64,
        each: Sequence[GenerateOptions] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[BatchEvent, None]:
        """Yields what comes of many prompts, as it comes: chunks, and for each prompt its result or its error at the
        end. An error ends its own prompt alone. The keywords are those of `generate_batch`, and wrong ones raise
        InvalidArgumentError at once. A slow reader holds up the answers."""
        return self._events(self._plans(prompts, concurrency, each, options), concurrency, deliver_chunks=True)

    def _plans(
        self,
        prompts: Sequence[Prompt],
        concurrency: int,
        each: Sequence[GenerateOptions] | None,
        options: GenerateOptions,
    ) -> list[GenerationPlan]:
        if isinstance(prompts, str | Encoding) or not isinstance(prompts, Sequence):
            raise invalid_argument([FieldViolation("prompts", "must be a list of prompts")])
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise invalid_argument([FieldViolation("concurrency", f"must be an integer >= 1, not {concurrency!r}")])
        if each is not None and not (isinstance(each, Sequence) and all(isinstance(own, Mapping) for own in each)):
            raise invalid_argument([FieldViolation("each", "must be a list of mappings of options")])
        if each is not None and len(each) != len(prompts):
            problem = f"must have as many elements as prompts, {len(prompts)}, not {len(each)}"
            raise invalid_argument([FieldViolation("each", problem)])
        name = options.get("request_id") or uuid.uuid4().hex
        plans: list[GenerationPlan] = []
        for index, prompt in enumerate(prompts):
            own = {} if each is None else dict(each[index])
            if common := sorted(_OF_ALL & own.keys()):
                problem = f"cannot have {common[0]}, which is for all prompts together"
                raise invalid_argument([FieldViolation(f"each[{index}]", problem)])
            merged = {**options, "request_id": f"{name}-{index}", **own}
            plans.append(self._plan(prompt, cast(GenerateOptions, merged), f"prompts[{index}]"))
        return plans

    async def _events(
        self, plans: list[GenerationPlan], concurrency: int, *, deliver_chunks: bool
    ) -> AsyncGenerator[BatchEvent, None]:
        if not plans:
            return
        deadline = Deadline.after(plans[0].timeout)
        try:
            encodings = await self._encode_prompts(plans, deadline)
        except (InvalidArgumentError, NotFoundError, ResourceExhaustedError) as error:
            if error.retryable:  # the service is full
                raise
            encodings = [None] * len(plans)  # one prompt is wrong or too large, and is told it by itself
        gate = asyncio.Semaphore(concurrency)
        came: asyncio.Queue[BatchEvent | BaseException] = asyncio.Queue(2 * concurrency)

        async def one(index: int, plan: GenerationPlan) -> None:
            try:
                async with gate:
                    await self._tell(index, plan, encodings[index], deadline, came, deliver_chunks)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                await came.put(error)

        tasks = [asyncio.create_task(one(index, plan)) for index, plan in enumerate(plans)]
        for task in tasks:
            self._batch_tasks.add(task)
            task.add_done_callback(self._batch_tasks.discard)
        left = len(plans)
        try:
            while left:
                event = await came.get()
                if isinstance(event, BaseException):
                    raise event
                left -= event.chunk is None
                yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _tell(
        self,
        index: int,
        plan: GenerationPlan,
        encoding: Encoding | None,
        deadline: Deadline,
        came: asyncio.Queue[BatchEvent | BaseException],
        deliver_chunks: bool,
    ) -> None:
        """Runs one prompt to its end."""
        try:
            answer = self._answer(plan, deliver_chunks=deliver_chunks, encoding=encoding, deadline=deadline)
            try:
                while deliver_chunks and (chunk := await answer.next_chunk()) is not None:
                    await came.put(BatchEvent(index, plan.request_id, chunk=chunk))
                last = BatchEvent(index, plan.request_id, result=await answer.finish())
            finally:
                answer.cancel(cancelled_by_caller(plan))
                await answer.closed()
        except TandemError as error:
            error.prompt_index = index
            last = BatchEvent(index, plan.request_id, error=error)
        await came.put(last)
