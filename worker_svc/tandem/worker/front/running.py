"""A request between admission and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tandem.common.tracing import exemplar
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.front.quarantine import digest
from tandem.worker.front.streams import OutputStream


@dataclass(slots=True, eq=False)
class Running:
    """One request and its outputs."""

    request_id: str
    streams: list[OutputStream]  # one a sample
    prompt_tokens: int
    admitted_tokens: int
    received_at: float
    caller: str
    request: pb.GenerateRequest
    key: bytes  # `digest` of the request, where that was needed
    suspicions: int  # engines that died in its first step
    submitted: bool = False
    left_out_tokens: int = 0  # of samples that best_of leaves out
    aborted: asyncio.Event = field(default_factory=asyncio.Event)  # before it was submitted
    exemplar: dict[str, str] | None = field(default_factory=exemplar)  # its trace, for histograms

    @property
    def begun(self) -> bool:
        """Tells whether the request has a token."""
        return any(stream.sent or stream.pending for stream in self.streams)


def request_digest(request: pb.GenerateRequest) -> bytes:
    """Returns a digest that stays the same when a request is sent again, under another id or resumed."""
    same = pb.GenerateRequest()
    same.CopyFrom(request)
    same.ClearField("request_id")
    same.ClearField("resumed_output_ids")
    return digest(same.SerializeToString(deterministic=True))
