"""The samples of README.md and docs/ run as they stand, but for the addresses; the SDK's tables name what exists.

So do the examples in docstrings, where `client` is a client that is open.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
from pathlib import Path

import pytest

from docs.samples import samples
from tandem.client import AsyncClient, AsyncStream, Client, Stream, errors, params
from tandem.client.batches import AsyncBatches
from tandem.client.calling import Calling
from tandem.client.plan import GenerationPlan
from tests import prepared
from tests.client.fakes import ServersThread

DOCS = Path(__file__).resolve().parents[2] / "docs"
SDK = (DOCS / "sdk.md").read_text()
SAMPLES = {name: code for name, code in samples().items() if "localhost:8000" not in code}  # these ask the HTTP door


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_run(servers: ServersThread, name: str) -> None:
    code = SAMPLES[name]
    if "BEGIN CERTIFICATE" in code:
        compile(code, "snippet", "exec")
        return
    code = code.replace("localhost:50051", servers.tokenizer_address).replace("localhost:50052", servers.worker_address)
    done = prepared.run("tests.prepared", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_every_exception_is_in_the_table() -> None:
    for cls in errors.BY_CODE.values():
        assert f"`{cls.__name__}`" in SDK


def test_every_option_is_in_the_table() -> None:
    table = SDK[SDK.index("| option |") : SDK.index("Everything is checked together")]
    fields = set(GenerationPlan.__dataclass_fields__) - {"prompt", "calling"}
    fields |= set(Calling.__dataclass_fields__)
    fields |= set(params.SamplingParams.__dataclass_fields__) | set(params.StoppingParams.__dataclass_fields__)
    fields |= {"preset", "strategy"}
    assert fields == set(params.GenerateOptions.__optional_keys__)
    # Those of SamplingParams are in the table of sampling.md, which is made from the contract.
    for field in fields - set(params.SamplingParams.__dataclass_fields__):
        assert re.search(rf"\b{field}\b", table), field


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_help_names_every_keyword(client: type[Client] | type[AsyncClient]) -> None:
    parameters = inspect.signature(client.generate).parameters
    assert set(params.GenerateOptions.__annotations__) < set(parameters)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


EXAMPLES = {
    f"{cls.__name__}.{name}": examples
    for cls in (Client, Stream, AsyncClient, AsyncStream)
    for name, member in {"": cls, **vars(cls), **(vars(AsyncBatches) if cls is AsyncClient else {})}.items()
    if (examples := doctest.DocTestParser().get_examples(inspect.getdoc(member) or ""))
}
WITH_EXAMPLES = ("encode", "count_tokens", "decode", "generate", "stream", "chat", "generate_batch")


@pytest.mark.parametrize("place", EXAMPLES)
async def test_examples_run(client: AsyncClient, servers: ServersThread, place: str) -> None:
    with Client(servers.tokenizer_address, servers.worker_address) as plain:
        names = {"client": client if place.startswith("Async") else plain}
        for example in EXAMPLES[place]:
            code = compile(example.source, place, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                waiting = eval(code, names)  # it is our own
                if code.co_flags & inspect.CO_COROUTINE:
                    await waiting
            assert shown.getvalue() == example.want


def test_the_main_calls_have_examples() -> None:
    assert {f"{cls}.{name}" for cls in ("Client", "AsyncClient") for name in WITH_EXAMPLES} <= EXAMPLES.keys()


def test_both_clients_are_documented_alike() -> None:
    for name, method in vars(AsyncClient).items():
        if not name.startswith("_") and name != "close" and inspect.isfunction(method):
            plain = (method.__doc__ or "").replace("await ", "").replace("async ", "")
            assert (getattr(Client, name).__doc__ or "").split() == plain.split(), name
