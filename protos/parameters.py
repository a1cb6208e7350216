"""Python that is made from the limits of the contract: what would otherwise be typed by hand in several places.

worker_svc/tandem/worker/engine/sampling.py               the sampling parameters of a request, every value effective
client/tandem/client/sampling_params.py     the same as a caller gives them, as an object and as keywords, with help
docs/sampling.md                            the columns range and default of its table
"""

from __future__ import annotations

import json
import re

from comments import declared, first_sentences
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import Kind, Limit, limits_of

LIMITS = limits_of(pb.SamplingParams.DESCRIPTOR)
ENGINE_TYPES = {
    Kind.NUMBER: "float",
    Kind.INTEGER: "int",
    Kind.FLAG: "bool",
    Kind.IDS: "tuple[int, ...]",
    Kind.SEQUENCES: "tuple[tuple[int, ...], ...]",
    Kind.BIASES: "tuple[tuple[int, float], ...]",
}
SDK_TYPES = {
    Kind.NUMBER: "float",
    Kind.INTEGER: "int",
    Kind.FLAG: "bool",
    Kind.IDS: "Sequence[int]",
    Kind.SEQUENCES: "Sequence[Sequence[int]]",
    Kind.BIASES: "Mapping[int, float]",
}
HEADER = '''"""{summary}

Made from SamplingParams of inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

'''


def files(descriptors: FileDescriptorSet, docs: str) -> dict[str, str]:
    """Returns the text of every generated file, by its path in the repository. `descriptors` carry the comments of the
    contract, `docs` is docs/sampling.md as it stands."""
    words = _comments(descriptors)
    return {
        "worker_svc/tandem/worker/engine/sampling.py": _engine(words),
        "client/tandem/client/sampling_params.py": _sdk(words),
        "docs/sampling.md": _table(docs),
    }


def _engine(words: dict[str, str]) -> str:
    lines = [
        HEADER.format(summary="How the next token is chosen, every value effective."),
        "from dataclasses import dataclass\n\n\n",
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Sampling:\n",
        '    """The defaults are those of a request that says nothing, for a model that says nothing either."""\n\n',
    ]
    for limit in LIMITS.values():
        default = {Kind.NUMBER: float, Kind.INTEGER: int, Kind.FLAG: bool}.get(limit.kind)
        value = "()" if default is None else repr(default(limit.default or 0))
        lines += declared(f"{limit.name}: {ENGINE_TYPES[limit.kind]} = {value}", words[limit.path])
    stateful = " or ".join(f"self.{limit.name} != {limit.default!r}" for limit in LIMITS.values() if limit.stateful)
    lines += [
        "\n    @property\n    def stateful(self) -> bool:\n",
        '        """Tells whether a draw depends on earlier draws and not on tokens alone: such a request is sampled\n',
        '        one token at a time, in order, and cannot go on from tokens that another worker produced."""\n',
        f"        return {stateful}\n",
    ]
    return "".join(lines)


def _sdk(words: dict[str, str]) -> str:
    lines = [
        HEADER.format(summary="The sampling parameters of a request, as an object and as keywords."),
        "from collections.abc import Mapping, Sequence\n",
        "from dataclasses import dataclass\n",
        "from typing import TypedDict\n\n\n",
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass SamplingParams:\n",
        '    """The parameters that choose the next token; formulas are in docs/sampling.md. None: the default."""\n\n',
    ]
    for limit in LIMITS.values():
        comment = "; ".join(part for part in (_bounds(limit), words[limit.path]) if part)
        lines += declared(f"{limit.name}: {SDK_TYPES[limit.kind]} | None = None", comment)
    lines += [
        "\n\nclass SamplingOptions(TypedDict, total=False):\n",
        '    """The fields of SamplingParams as keywords."""\n\n',
        *(f"    {limit.name}: {SDK_TYPES[limit.kind]} | None\n" for limit in LIMITS.values()),
        "\n\n# What the contract says of each, for help.\nHELP = {\n",
        *(f"    {json.dumps(limit.name)}: {json.dumps(words[limit.path])},\n" for limit in LIMITS.values()),
        "}\n",
    ]
    return "".join(lines)


def _bounds(limit: Limit) -> str:
    if limit.kind is Kind.INTEGER and limit.high >= 2**32 - 1:
        return f">= {limit.low:g}"
    if not limit.scalar:
        return f"at most {limit.range}"
    return limit.range


def _comments(descriptors: FileDescriptorSet) -> dict[str, str]:
    """Returns the contract's comment of each parameter, by path."""
    said = first_sentences(descriptors)
    found = {}
    for path, limit in LIMITS.items():
        message = pb.SamplingParams.DESCRIPTOR
        for parent in path.split(".")[:-1]:
            message = message.fields_by_name[parent].message_type
        found[path] = said[message.name, limit.field]
    return found


def _table(page: str) -> str:
    """Returns the page with the columns range and default of its first table as the contract has them."""
    for path, limit in LIMITS.items():
        row = re.search(rf"^\| `{re.escape(path)}` \|[^|]*\|[^|]*\|", page, flags=re.MULTILINE)
        if row is None:
            raise SystemExit(f"docs/sampling.md: its table has no row for {path}")
        page = page.replace(row[0], f"| `{path}` | {limit.range} | {_default(limit)} |".replace("|  |", "| |"))
    return page


def _default(limit: Limit) -> str:
    if not limit.scalar:
        return "all" if limit.path == "allowed_ids" else "none"
    if limit.default is None:
        return "drawn"
    if limit.kind is Kind.FLAG:
        return str(bool(limit.default)).lower()
    return "the context" if limit.default == 2**32 - 1 else f"{limit.default:g}"
