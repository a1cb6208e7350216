"""The pages for people who look for something: what they link to and name is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
CORE_LINES = 2_000  # the engine's core is to be read in an afternoon


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text())


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path):
    for link in links(page):
        if "://" in link:
            continue
        target, _, anchor = link.replace("\\", "").partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), link


def test_the_map_names_every_package_and_the_core_is_short():
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent for path in ROOT.glob("*_svc/tandem/**/*.py")} | {ROOT / "svc_common/tandem/common"}
    for package in packages:
        name = package.relative_to(ROOT).as_posix()
        assert f"../{name}" in page, name
    core = re.findall(r"^\d+\. \[\w+\.py\]\(\.\./(worker_svc/tandem/worker/engine/\w+\.py)\)", page, flags=re.MULTILINE)
    assert len(core) == 10
    assert sum(len((ROOT / path).read_text().splitlines()) for path in core) <= CORE_LINES
    assert f"ten files, together under {CORE_LINES:,} lines" in (ROOT / "README.md").read_text()


def literals() -> str:
    """Every text in the code of the services and the SDK, one a line; what is put into it at run time is left out."""
    found: list[str] = []
    for path in [*ROOT.glob("*_svc/tandem/**/*.py"), *ROOT.glob("svc_common/**/*.py"), *ROOT.glob("client/**/*.py")]:
        constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        found += [value.replace("\n", " ") for value in constants if isinstance(value, str)]
    return "\n".join(found)


def test_messages_and_reasons_of_the_page_on_troubles_are_those_of_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    connections = page.split("\n## Connections\n")[1].split("\n## ")[0]  # most of them are gRPC's
    symptoms = [line.split("|")[1] for line in page.replace(connections, "").splitlines() if line.startswith("| ")]
    quoted = [text for symptom in symptoms for text in re.findall(r"`([^`]+)`", symptom)]
    said = literals()
    for reason in (text for text in quoted if re.fullmatch(r"[A-Z_]+", text)):
        assert f"\n{reason}\n" in said, reason
    messages = [text for text in quoted if text.count(" ") > 2 and "vs. 16777216" not in text]  # that one is gRPC's
    assert len(messages) > 40
    for message in messages:
        told = re.split(
            r"\.\.\.|'[^']*'|--[\w-]+|[()]|\b\d+\b|\b[A-Z]{2,}\b|[A-Z]\w+Error:", message
        )  # but for what varies
        words = [each.split() for each in told]
        threes = [" ".join(part[i : i + 3]) for part in words for i in range(len(part) - 2)]
        assert sum(three in said for three in threes) >= len(threes) / 3, message
