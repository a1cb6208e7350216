"""Python that is made from FinishReason, Usage and Timings of the contract: why a generation ended, and what it cost.

worker_svc/tandem/worker/engine/account.py     as the engine counts it
client/tandem/client/account.py               as a caller sees it
"""

from __future__ import annotations

from comments import declared, first_sentences
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tandem.inference.v1 import inference_pb2 as pb

PREFIX = "FINISH_REASON_"
# What the SDK knows itself, whatever a worker says.
OWN = {
    "prompt_tokens": "",
    "completion_tokens": "produced by all workers together, up to the one that completed a stop string; "
    "left_out_tokens included",
}
ENGINE = '''"""Why a request ended, and what it cost.

Made from inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.IntEnum):
    """The numbers are the contract's."""

{reasons}

@dataclass(slots=True)
class Usage:
    """What the contract tells of a request; what the front alone knows stays 0 in the engine."""

{usage}'''
SDK = '''"""Why a generation ended, and what it cost.

Made from inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.StrEnum):
    """The reason why a generation ended."""

    STOP_STRING = enum.auto()  # a text of stop was produced; `matched_stop` says which
{reasons}

@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a generation, of all its outputs together. None: the worker was lost before it reported."""

{usage}

@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimings:
    """Times in seconds, measured by the (last) worker; None where unknown."""

{timings}'''


def files(descriptors: FileDescriptorSet) -> dict[str, str]:
    """Returns the text of every generated file, by its path in the repository."""
    words = first_sentences(descriptors)
    reasons = {
        value.name.removeprefix(PREFIX): (value.number, words["FinishReason", value.name])
        for value in pb.FinishReason.DESCRIPTOR.values
        if value.number
    }
    usage = {name: words["Usage", name] for name in pb.Usage.DESCRIPTOR.fields_by_name}
    timings = {name: words["Timings", name] for name in pb.Timings.DESCRIPTOR.fields_by_name}

    def lines(declarations: dict[str, str]) -> str:
        return "".join(part for line, comment in declarations.items() for part in declared(line, comment))

    return {
        "worker_svc/tandem/worker/engine/account.py": ENGINE.format(
            reasons=lines({f"{name} = {number}": said for name, (number, said) in reasons.items()}),
            usage=lines({f"{name}: int = 0": said for name, said in usage.items()}),
        ),
        "client/tandem/client/account.py": SDK.format(
            reasons=lines({f"{name} = enum.auto()": said for name, (_, said) in reasons.items()}),
            usage=lines(
                {
                    f"{name}: int" if name in OWN else f"{name}: int | None = None": OWN.get(name, said)
                    for name, said in usage.items()
                }
            ),
            timings=lines({f"worker_{name}: float | None = None": said for name, said in timings.items()}),
        ),
    }
