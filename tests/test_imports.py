"""Imports point one way: no circle of files or folders, nothing imports what is above it, and cores stay light.

Imports under TYPE_CHECKING and inside functions count like all others, but for what is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "tandem.common": "",
    "tandem.tokenizer": "",
    "tandem.worker": "",
    "tandem": "client",
    "tandem.limits": "protos",
}

# From the top down: a line may import itself and what is below it. The longest name that fits a module counts.
LAYERS = """
tandem.client.cli tandem.client.__main__
tandem.client
tokenizer_svc
tandem.tokenizer.formats tandem.tokenizer.chat
tandem.tokenizer.tokenizer tandem.tokenizer.config tandem.tokenizer.encoding tandem.tokenizer.fragments
tandem.tokenizer.streaming tandem.tokenizer.encode_cache tandem.tokenizer.guarding tandem.tokenizer.spacing
tandem.tokenizer.graphemes tandem.tokenizer.stop_strings
tandem.tokenizer.vocabularies
tandem.tokenizer.native
tandem.tokenizer.arrays tandem.tokenizer.vocabulary tandem.tokenizer.normalizing tandem.tokenizer.wire tandem.tokenizer.offsets
worker_svc tandem.worker.convert
tandem.worker.engine.handle tandem.worker.engine.process tandem.worker.engine.ranks tandem.worker.engine.serving
tandem.worker.engine.build tandem.worker.engine.calibration tandem.worker.engine.messages tandem.worker.engine.config
tandem.worker.engine
tandem.worker.engine.sampler
tandem.worker.engine.request tandem.worker.engine.sampling tandem.worker.engine.stops tandem.worker.engine.randomness
tandem.worker.engine.pages tandem.worker.engine.blank_pages
tandem.worker.engine.guides
tandem.worker.model
tandem.worker.model.kernels tandem.worker.model.native
tandem.worker.model.attention tandem.worker.model.kv_cache tandem.worker.model.kv_formats
tandem.worker.checkpoints
svc_common
tandem
"""
APART = ("tandem.client", "tandem.tokenizer", "tandem.worker")  # never import each other
LIGHT = {  # modules that are loaded without these
    "tandem.client": "torch",
    "tandem.tokenizer.server": "torch",
    "tandem.tokenizer.fragments tandem.tokenizer.streaming tandem.tokenizer.tokenizer": "torch grpc",
    "tandem.worker.server": "torch",
    "tandem.worker.engine.scheduler tandem.worker.engine.page_check tandem.worker.engine.outcome": "torch grpc",
    "tandem.worker.engine.fork tandem.worker.engine.speculation tandem.worker.engine.guides.host": "torch grpc",
}
KNOWN = {  # imports that count nowhere, each with its reason
    ("tandem.worker.admin", "tandem.worker.server"): "the type of a parameter",
    ("tandem.worker.engine.request", "tandem.worker.engine.drafting"): "a request holds what speculation keeps of it",
    ("tandem.worker.engine.guides.grammars", "tandem.worker.engine.request"): "the engine's side of guides",
    ("tandem.worker.engine.guides.host", "tandem.worker.engine.pages"): "the type of ids",
    ("tandem.tokenizer.native.merger", "tandem.tokenizer.vocabularies.merge_list"): "its arguments",
    ("tandem.tokenizer.native.program", "tandem.tokenizer.vocabularies.patterns"): "what it compiles",
}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package, root in PACKAGES.items():
        for path in (ROOT / root / package.replace(".", "/")).rglob("*.py"):
            found[".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def home(name: str) -> str:
    """The module that a dotted name is or is in; of a stranger, its package."""
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
            base = [*parts[: len(parts) + 1 - node.level], node.module or ""] if node.level else [node.module or ""]
            yield from (home(".".join([*filter(None, base), alias.name])) for alias in node.names)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def arrows() -> set[tuple[str, str]]:
    found = {(module, target) for module in modules() for target in imported(module) if target in modules()}
    assert found >= KNOWN.keys(), "a known exception is gone: delete its line"
    return {(source, target) for source, target in found if source != target} - KNOWN.keys()


def sorted_or_raise(pairs: set[tuple[str, str]]) -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for source, target in pairs:
        sorter.add(source, target)
    sorter.prepare()  # raises CycleError, which names one


def test_no_files_import_each_other_in_a_circle() -> None:
    sorted_or_raise(arrows())


def test_no_folders_beside_each_other_import_each_other_in_a_circle() -> None:
    folders = set()
    for source, target in arrows():
        pair = list(zip(source.split("."), target.split("."), strict=False))
        same = next((i for i, (a, b) in enumerate(pair) if a != b), len(pair))
        heads = tuple(".".join(name.split(".")[: same + 1]) for name in (source, target))
        if all(head in modules() and modules()[head].name == "__init__.py" for head in heads):
            folders.add(heads)
    sorted_or_raise(folders)


def test_no_import_climbs() -> None:
    layer = {name: number for number, line in enumerate(LAYERS.splitlines()) for name in line.split()}

    def level(module: str) -> int:
        while module not in layer:
            module = module.rpartition(".")[0]
        return layer[module]

    climbing = sorted(f"{source} -> {target}" for source, target in arrows() if level(source) > level(target))
    assert not climbing, "\n".join(climbing)


def test_client_and_services_do_not_know_each_other() -> None:
    def package(module: str) -> str:
        return next((each for each in APART if f"{module}.".startswith(f"{each}.")), "")

    crossing = [(a, b) for a, b in arrows() if package(a) and package(b) and package(a) != package(b)]
    assert not crossing


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
