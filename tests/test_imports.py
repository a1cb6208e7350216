"""Imports point one way: no circle of files or folders, nothing imports what is above it, and cores stay light.

Imports under TYPE_CHECKING and inside functions count like all others, but for what is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOMES = (
    "client",
    "http_svc",
    "tokenizer_svc",
    "worker_svc",
    "svc_common",
    "protos",
)  # of parts of the package `tandem`
APART = [  # never import each other
    {"client", "tokenizer_svc"},
    {"client", "worker_svc"},
    {"tokenizer_svc", "worker_svc"},
    {"http_svc", "tokenizer_svc"},
    {"http_svc", "worker_svc"},
]

# From the top down: a line may import itself and what is below it. The longest name that fits a module counts.
LAYERS = """
client.cli client.__main__
http
client
tokenizer.__main__ tokenizer.rpc
tokenizer.settings
tokenizer.formats tokenizer.chat
tokenizer
tokenizer.answers
tokenizer.decoding
tokenizer.vocabularies
tokenizer.native
tokenizer.arrays tokenizer.vocabulary tokenizer.normalizing tokenizer.wire tokenizer.offsets tokenizer.word_cache
tokenizer.library_characters
worker
worker.front worker.convert
worker.settings
worker.engine.process
worker.engine
worker.engine.speculation
worker.engine.sampler
worker.engine.request worker.engine.reasoning worker.engine.sampling worker.engine.stops worker.engine.randomness
worker.engine.pages
worker.engine.kept_states
worker.engine.chains worker.engine.states worker.engine.free_pages
worker.engine.page_events worker.engine.guides worker.engine.ends
worker.engine.load worker.engine.account
worker.model.cuda
worker.model
worker.model.cuda.kernels worker.model.cpu.native
worker.model.attention worker.model.kv_cache worker.model.kv_formats worker.model.unfinished
worker.checkpoints
common
limits inference tokenizer.v1
"""
LIGHT = {  # modules that are loaded without these
    "client": "torch",
    "http.server": "torch",
    "tokenizer.rpc.server": "torch jinja2",
    "tokenizer.fragments tokenizer.decoding.streaming tokenizer.tokenizer": "torch grpc",
    "tokenizer.answers.parser": "torch grpc",
    "worker.front.server": "torch",
    # The first engine's process is started behind these, and while settings are read it imports torch.
    "client.cli client.__main__": "asyncio grpc google numpy prometheus_client rich typer",  # and the worker behind it
    "worker.__main__": "asyncio torch grpc google msgspec numpy prometheus_client pydantic zmq",
    "worker.settings": "torch grpc google numpy prometheus_client zmq",
    "worker.engine.process.main": "torch grpc prometheus_client",
    "worker.engine.scheduler worker.engine.integrity worker.engine.outcome worker.engine.fork": "torch grpc",
    "worker.engine.speculation.proposals worker.engine.guides.host": "torch grpc",
}


@cache
def modules() -> dict[str, Path]:
    """All files by their names without `tandem`."""
    folders = [ROOT / home / "tandem" for home in HOMES]
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in folder.rglob("*.py")
    }


def home(name: str) -> str:
    """The module that a dotted name is or is in; of a stranger, its package."""
    name = name.removeprefix("tandem.")
    while name not in modules() and "." in name:
        name = name.rpartition(".")[0]
    return name


def imported(module: str, *, loaded: bool = False) -> Iterator[str]:
    """What a module imports, or only what is `loaded` with it."""
    path = modules()[module]
    parts = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if loaded and (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (home(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: len(parts) + 1 - node.level], node.module] if node.level else [node.module]
            yield from (home(".".join([*filter(None, base), alias.name])) for alias in node.names)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def arrows() -> set[tuple[str, str]]:
    found = {(module, target) for module in modules() for target in imported(module) if target in modules()}
    return {(source, target) for source, target in found if source != target}


def circle(pairs: set[tuple[str, str]]) -> list[str]:
    """The names along one circle of arrows; none where there is no circle."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for source, target in pairs:
        sorter.add(source, target)
    try:
        sorter.prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(arrows()) == []


def test_no_folders_beside_each_other_import_each_other_in_a_circle() -> None:
    folders = set()
    for source, target in arrows():
        a, b = source.split(".")[:-1], target.split(".")[:-1]
        parted = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), None)
        if parted is not None:
            folders.add((".".join(a[: parted + 1]), ".".join(b[: parted + 1])))
    assert circle(folders) == []


def test_no_import_climbs() -> None:
    layer = {name: number for number, line in enumerate(LAYERS.splitlines()) for name in line.split()}

    def level(module: str) -> int:
        while module not in layer:
            module = module.rpartition(".")[0]
        return layer[module]

    climbing = sorted(f"{source} -> {target}" for source, target in arrows() if level(source) > level(target))
    assert not climbing, "\n".join(climbing)


def test_client_and_services_do_not_know_each_other() -> None:
    homes = {name: path.relative_to(ROOT).parts[0] for name, path in modules().items()}
    assert not [(a, b) for a, b in arrows() if {homes[a], homes[b]} in APART]


@pytest.mark.parametrize("light", LIGHT)
def test_what_is_light_loads_nothing_heavy(light: str) -> None:
    seen: set[str] = set()
    waiting = light.split()
    while waiting:
        module = waiting.pop()
        if module and module not in seen:
            seen.add(module)
            waiting += imported(module, loaded=True) if module in modules() else ()
            waiting.append(module.rpartition(".")[0])  # its package is loaded with it
    assert not seen & set(LIGHT[light].split())
