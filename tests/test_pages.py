"""The pages for people who look for something: what they link to and name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])
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
    assert len(core) == 11
    assert sum(len((ROOT / path).read_text().splitlines()) for path in core) <= CORE_LINES
