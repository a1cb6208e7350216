"""Writes what images install: deploy/docker/locks/IMAGE.txt, each package with its version and hashes.

    python deploy/docker/lock.py               resolve anew, within pyproject.toml and constraints.txt; needs uv
    python deploy/docker/lock.py --check       asks nobody: exit code 1 where a lock does not fit them

Only wheels that an image can use are listed, for every Python and platform that it may have, and no sources: nothing of
another's is built. torch is in no lock, because each index (for CPUs, for each CUDA) has a build of its own under the
same version: images install it beside the lock, at the version of constraints.txt, with what only that build needs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).with_name("locks")
# What each image needs of pyproject.toml's extras; the wheel of our own is built in all but the gateway's.
EXTRAS = {
    "tokenizer": ("tokenizer", "pull", "otel"),
    "worker": ("gateway", "pull", "otel"),
    "http": ("http", "otel"),
}
OTHERS = {"gateway": ("smg==1.13.0",), "build": ("hatchling",)}
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
BESIDE = re.compile(r"torch|triton|nvidia-.+|cuda-.+")  # torch, and what only its CUDA builds need


def requirements_of(project: dict[str, Any], *extras: str) -> list[str]:
    """The base dependencies and those of `extras`; an extra that names this project's other extras is unfolded."""
    name, optional = project["name"], project["optional-dependencies"]
    found: dict[str, None] = dict.fromkeys(project["dependencies"])
    waiting = [*extras]
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(optional)}")
    while waiting:
        for requirement in optional[waiting.pop()]:
            own = re.fullmatch(rf"{re.escape(name)}\[([\w,\s-]+)\]", requirement)
            if own:
                waiting += [part.strip() for part in own[1].split(",")]
            else:
                found[requirement] = None
    return list(found)


def wanted() -> dict[str, list[str]]:
    """What each lock is about."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {image: requirements_of(project, *extras) for image, extras in EXTRAS.items()}
    return ours | {image: [*requirements] for image, requirements in OTHERS.items()}


def in_an_image(marker: str | None) -> bool:
    """Whether a package with this marker is installed in any of the images."""
    environments = (
        {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
         "implementation_name": "cpython", "platform_python_implementation": "CPython", "sys_platform": "linux",
         "platform_system": "Linux", "os_name": "posix"}
        for python in PYTHONS for machine in MACHINES
    )  # fmt: skip
    return marker is None or any(Marker(marker).evaluate(environment) for environment in environments)


def fits(wheel: str) -> bool:
    """Whether an image can use a wheel of this name."""
    interpreters = {f"cp{python.replace('.', '')}" for python in PYTHONS}
    for tag in parse_wheel_filename(wheel)[3]:
        stable = tag.abi == "abi3" and int(tag.interpreter.removeprefix("cp3") or 0) <= 13
        python = tag.interpreter.startswith("py3") or (tag.interpreter in interpreters and not tag.abi.endswith("t"))
        machine = tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES)
        if (python or stable) and (tag.platform == "any" or machine):
            return True
    return False


def locked(requirements: Iterable[str], folder: Path) -> str:
    """The lock of these, from the package index."""
    (folder / "in.txt").write_text("\n".join(requirements))
    command = [
        *("uv", "pip", "compile", "--no-config", "--quiet", "--universal", f"--python-version={PYTHONS[0]}"),
        *("--default-index=https://pypi.org/simple", f"--constraint={ROOT / 'constraints.txt'}"),
        *("--format=pylock.toml", f"--output-file={folder / 'pylock.toml'}", str(folder / "in.txt")),
    ]
    subprocess.run(command, check=True)
    lines = ["# Made by deploy/docker/lock.py."]
    for package in tomllib.loads((folder / "pylock.toml").read_text())["packages"]:
        if BESIDE.fullmatch(package["name"]) or not in_an_image(package.get("marker")):
            continue
        wheels = {each["url"].rpartition("/")[2]: each["hashes"]["sha256"] for each in package.get("wheels", ())}
        hashes = sorted(digest for name, digest in wheels.items() if fits(name))
        if not hashes:
            raise SystemExit(f"{package['name']} {package['version']} has no wheel for images")
        marker = f" ; {package['marker']}" if "marker" in package else ""
        head = f"{package['name']}=={package['version']}{marker}"
        lines.append(" \\\n    ".join([head, *(f"--hash=sha256:{digest}" for digest in hashes)]))
    return "\n".join(lines) + "\n"


def pins(text: str) -> dict[str, list[Requirement]]:
    """What a lock, or another list of versions, says of each package; markers may give it several."""
    found: dict[str, list[Requirement]] = {}
    for line in text.replace("\\\n", "").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line.partition("--hash")[0])
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def complaints(image: str, requirements: Iterable[str], lock: str, constraints: str) -> list[str]:
    """What a lock lacks of these requirements, and where it has another version than they and `constraints` allow."""
    found, asked = pins(lock), [Requirement(each) for each in requirements]
    asked += [each for several in pins(constraints).values() for each in several if each.name in found]
    wrong = []
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if BESIDE.fullmatch(name):
            continue
        versions = [str(pin.specifier).removeprefix("==") for pin in found.get(name, ())]
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{image}: {requirement} is asked for, and locked is {versions or 'nothing'}")
    entries = lock.replace("\\\n", "").splitlines()[1:]
    return wrong + [f"{image}: {entry.split()[0]} has no hash" for entry in entries if "--hash=sha256:" not in entry]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    if options.check:
        constraints = (ROOT / "constraints.txt").read_text()
        wrong = [
            complaint
            for image, requirements in wanted().items()
            for complaint in complaints(image, requirements, (LOCKS / f"{image}.txt").read_text(), constraints)
        ]
        print("\n".join([*wrong, "run python deploy/docker/lock.py"]) if wrong else "the locks fit", file=sys.stderr)
        return bool(wrong)
    LOCKS.mkdir(exist_ok=True)
    for image, requirements in wanted().items():
        with tempfile.TemporaryDirectory() as folder:
            (LOCKS / f"{image}.txt").write_text(locked(requirements, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
