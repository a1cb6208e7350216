"""Base images made on this machine, for where no registry can be reached.

The project's Dockerfiles stay as a user needs them: what this machine's network asks for (its certificates, its package
index) goes into the local base image, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from local_engine import run, say, unpacked

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE, PROMETHEUS = "tandem-local/python:test", "tandem-local/prometheus:test"


def release() -> str:
    """The code name of this machine's distribution."""
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return facts["VERSION_CODENAME"].strip('"')


def bootstrap(root: Path, packages: list[str]) -> None:
    """A minimal system with these packages in the folder `root`."""
    run(
        "mmdebstrap", "--variant=minbase", "--mode=root", f"--include={','.join(packages)}",
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", '--aptopt=Acquire::Languages "none"',
        release(), root,
        timeout=1200,
    )  # fmt: skip


def import_image(root: Path, tag: str, changes: list[str], environment: dict[str, str]) -> None:
    """The folder `root` as an image of one layer."""
    archive = subprocess.Popen(["tar", "--numeric-owner", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
    flags = [part for change in changes for part in ("--change", change)]
    run("docker", "import", *flags, "-", tag, stdin=archive.stdout, env=environment)
    if archive.wait():
        raise RuntimeError(f"tar of {root} failed")
    shutil.rmtree(root)


def library_packages(prefix: Path) -> list[str]:
    """The packages of the shared libraries that this Python and its extension modules link."""
    binaries = [prefix / "bin" / f"python3.{sys.version_info.minor}", *prefix.glob("lib/python3.*/lib-dynload/*.so")]
    linked = run("ldd", *binaries)
    files = {Path(path).resolve() for path in re.findall(r"=> (/\S+)", linked)}
    # A merged /usr: a package may know its file as /lib/... or as /usr/lib/...
    names = sorted(
        str(file).removeprefix(start) for file in files for start in ("", "/usr") if prefix not in file.parents
    )
    known = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout
    return sorted({line.split(":", 1)[0] for line in known.splitlines() if " " not in line.split(":", 1)[0]})


def pip_configuration() -> dict[str, list[str]]:
    """This machine's package indexes and folders of wheels, from files and environment."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name.rsplit(".", 1)[-1], []).extend(value.strip("'\"").replace("\\n", " ").split())
    return found


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *arguments: object) -> None:
        """A reader that goes away in the middle is no news."""


@contextlib.contextmanager
def served_on(address: str, folder: Path) -> Iterator[str]:
    """The folder over HTTP on a free port of the engine's bridge, so that a build can read it."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = QuietServer((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def bridge_address() -> str:
    """This machine as a container on the engine's default bridge sees it."""
    links = json.loads(run("ip", "-json", "-4", "address", "show", "dev", "docker0"))
    address: str = links[0]["addr_info"][0]["local"]
    return address


@contextlib.contextmanager
def local_base_image(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A stand-in for python:*-slim: this machine's release with a copy of the Python that runs this script.

    Wheels that this machine keeps in folders (pip's find-links) are served to the build as long as the context is open.
    """
    root, prefix = folder / "python-root", Path(sys.base_prefix)
    say(f"making a base image: {release()}, Python {sys.version_info.major}.{sys.version_info.minor}")
    common = ["ca-certificates", "netbase", "tzdata"]
    if prefix == Path("/usr"):
        bootstrap(root, [*common, "python3", "python3-pip", "python3-venv"])
    else:
        bootstrap(root, [*common, *library_packages(prefix)])
        keep_out = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "*.a", "share", "config-3*")
        shutil.copytree(prefix, root / "usr" / "local", dirs_exist_ok=True, symlinks=True, ignore=keep_out)
        run("chroot", root, "/usr/sbin/ldconfig")
        run(
            "chroot",
            root,
            "/usr/local/bin/python3",
            "-m",
            "ensurepip",
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin"},
        )
    shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    with contextlib.ExitStack() as stack:
        configured, address = pip_configuration(), bridge_address()
        links = [Path(value.removeprefix("file://")) for value in configured.get("find-links", [])]
        urls = [stack.enter_context(served_on(address, path)) for path in dict.fromkeys(links) if path.is_dir()]
        lines = ["[global]", f"cert = {CERTIFICATES}", "disable-pip-version-check = true", "root-user-action = ignore"]
        lines += ["retries = 1"]  # an extra index that cannot be reached is asked for every package
        lines += [f"index-url = {value}" for value in configured.get("index-url", []) if value.startswith("http")]
        if urls:
            lines += ["find-links =", *(f"    {url}" for url in urls), f"trusted-host = {address}"]
        (root / "etc" / "pip.conf").write_text("\n".join(lines) + "\n")
        import_image(root, BASE, ["ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], environment)
        yield BASE


def local_prometheus_image(folder: Path, base: str, environment: dict[str, str]) -> str:
    """A stand-in for prom/prometheus: Debian's programs on the base image, laid out and started like it."""
    say("making a Prometheus image")
    context = folder / "prometheus"
    tree = unpacked(context, ["prometheus", "promtool"])
    for program in ("prometheus", "promtool"):
        shutil.copy2(tree / "usr" / "bin" / program, context / program)
    shutil.rmtree(tree)
    (context / "Dockerfile").write_text(
        f"FROM {base}\n"
        "COPY prometheus promtool /bin/\n"
        "RUN mkdir /prometheus && chown 65534:65534 /prometheus\n"
        "USER 65534\n"
        "WORKDIR /prometheus\n"
        'ENTRYPOINT ["/bin/prometheus"]\n'
    )
    run("docker", "build", "--quiet", f"--tag={PROMETHEUS}", str(context), env=environment)
    return PROMETHEUS
