"""What the log tells of a request: its numbers, never its ids or text."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.common.logs import request_id_var
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import Failure
from tandem.worker.front.streams import OutputStream


def facts(request_id: str, model: str, prompt_tokens: int, streams: Sequence[OutputStream]) -> dict[str, object]:
    """Returns fields of a log line. Of several outputs the times are those of the last that has ended, and the
    cached tokens the fewest: the others found what the first had computed. A request that never ended has none."""
    told: dict[str, object] = {} if request_id == request_id_var.get() else {"id": request_id}
    told |= {
        "model": model,
        "prompt_tokens": prompt_tokens,
        "output_tokens": sum(stream.sent for stream in streams),
    }
    every = [stream.ended for stream in streams if stream.ended is not None]
    if every:
        ended, counted = every[-1], every[-1].statistics
        told["cached_tokens"] = min(each.statistics.cached_prompt_tokens for each in every)
        told["finished"] = _NAMES[ended.reason]
        told["queue_seconds"] = round(counted.queue_seconds, 4)
        told["prefill_seconds"] = round(counted.prefill_seconds, 4)
        told["decode_seconds"] = round(counted.decode_seconds, 4)
    return told


_NAMES = {int(reason): reason.name.lower() for reason in (*FinishReason, *Failure)}
