"""A Docker engine of our own for a test: started by hand, stopped by its pid, nothing of the machine's own touched.

Needs root on Debian or Ubuntu. Everything lies in one temporary folder: data, state, sockets, client configuration.
What an engine changes outside of it (packet filter rules, bridges, IP forwarding) is put back at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ENGINE_PACKAGES = {"dockerd": "docker.io", "iptables": "iptables", "ip": "iproute2", "mmdebstrap": "mmdebstrap"}
PLUGIN_PACKAGES = ["docker-compose", "docker-buildx"]  # each has a program of its own name
DAEMON_PACKAGES = ["docker.io", "containerd"]
NEWER_RELEASE = "trixie"  # Debian 12's compose has no `up --wait`, and its engine no `start_interval`
LOCK = Path("/run/tandem-docker.lock")
SCRATCH = "tandem-scratch-"  # what the names of our temporary folders begin with
SCRATCH_BYTES = 8 << 30  # an engine's data with both images takes about 4 GiB
EMPTY_TABLES = """*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
COMMIT
"""
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


ENGINE_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}  # for networks and mounts; from linux/capability.h


class EngineUnavailableError(Exception):
    """Why this machine cannot be expected to run an engine. What goes wrong beyond that is a failure."""


def say(text: str) -> None:
    print(f"{Path(sys.argv[0]).stem.replace('_', '-')}: {text}", flush=True)


def run(*command: str | Path, timeout: float = 300, **options: object) -> str:
    """Standard output of a command; its whole output is shown when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise RuntimeError(f"{shown}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def engine_answers(environment: Mapping[str, str]) -> bool:
    """Whether `docker` reaches an engine with this environment."""
    if shutil.which("docker") is None:
        return False
    probe = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(probe, env=environment, capture_output=True, timeout=30).returncode == 0


def install_packages(names: list[str]) -> None:
    """From the machine's own package sources."""
    say(f"installing {' '.join(names)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", env=environment, timeout=600)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *names, env=environment, timeout=600)


def missing_capabilities() -> list[str]:
    """What an engine needs and this process does not have: root of an ordinary container lacks both."""
    facts = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    effective = int(facts["CapEff"], 16)
    return [name for bit, name in ENGINE_CAPABILITIES.items() if not effective >> bit & 1]


def require_engine(may_install: bool) -> None:
    """Raises EngineUnavailableError where no engine is to be had: no root, no Debian, nothing may be installed."""
    if os.geteuid() != 0:
        raise EngineUnavailableError("no Docker engine answers, and starting one needs root")
    if missing := missing_capabilities():
        raise EngineUnavailableError(f"no Docker engine answers, and starting one needs {' and '.join(missing)}")
    if shutil.which("apt-get") is None:
        raise EngineUnavailableError("no Docker engine answers, and this is not a Debian or Ubuntu machine")
    packages = sorted({package for program, package in ENGINE_PACKAGES.items() if shutil.which(program) is None})
    if packages and not may_install:
        raise EngineUnavailableError(
            f"no Docker engine answers; to start one, install {' '.join(packages)} or give --install"
        )
    if packages:
        install_packages(packages)


def unpacked(folder: Path, packages: list[str]) -> Path:
    """These packages of `NEWER_RELEASE`, unpacked into a folder below `folder` and not installed."""
    state, tree = folder / "apt", folder / "tree"
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={keys}] http://deb.debian.org/debian {NEWER_RELEASE} main\n"
    (state / "sources.list").write_text(source)
    options = [
        f"Dir::Etc::SourceList={state / 'sources.list'}",
        "Dir::Etc::SourceParts=-",
        f"Dir::State::Lists={state / 'lists'}",
        f"Dir::Cache={state / 'cache'}",
        "Dir::State::Status=/dev/null",
        "Acquire::Languages=none",
        "APT::Sandbox::User=root",
    ]
    flags = [part for option in options for part in ("-o", option)]
    run("apt-get", *flags, "update", "-qq", timeout=300)
    run("apt-get", *flags, "download", "-qq", *packages, cwd=state, timeout=300)
    for package in state.glob("*.deb"):
        run("dpkg", "-x", package, tree)
    shutil.rmtree(state)
    return tree


def download_engine(folder: Path, plugins: Path) -> Path:
    """Compose and buildx as plugins of the `docker` command, and the daemons: the folder that they are in."""
    tree = unpacked(folder, [*PLUGIN_PACKAGES, *DAEMON_PACKAGES])
    plugins.mkdir(parents=True)
    for program in PLUGIN_PACKAGES:
        found = next(path for path in tree.rglob(program) if path.is_file() and os.access(path, os.X_OK))
        shutil.copy2(found, plugins / program)
    return tree / "usr"


def network_interfaces() -> set[str]:
    return {entry.name for entry in Path("/sys/class/net").iterdir()}


@contextmanager
def network_put_back() -> Iterator[None]:
    """Afterwards packet filter rules, bridges and IP forwarding are as they were before."""
    rules, links, forwarding = run("iptables-save"), network_interfaces(), FORWARDING.read_text()
    try:
        yield
    finally:
        for link in network_interfaces() - links:
            if link.startswith(("docker", "br-", "veth")):
                with suppress(RuntimeError):  # the other end of a pair goes with the first
                    run("ip", "link", "delete", link)
        run("iptables-restore", input=EMPTY_TABLES)  # tables that were not in use before
        run("iptables-restore", input=rules)
        FORWARDING.write_text(forwarding)


def available_memory() -> int:
    """Bytes that programs can have: what caches of files hold is given back for them."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) << 10


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder with room for SCRATCH_BYTES, in memory where there is plenty: images are tens of thousands of
    small files. Raises EngineUnavailableError where neither memory nor disk has that room."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True) as name:
        folder, mounted = Path(name), False
        if available_memory() > 2 * SCRATCH_BYTES:
            with suppress(RuntimeError):  # else on the disk
                run("mount", "-t", "tmpfs", "-o", f"size={SCRATCH_BYTES},mode=700", "tandem-scratch", folder)
                mounted = True
        if not mounted and (free := shutil.disk_usage(folder).free) < SCRATCH_BYTES:
            raise EngineUnavailableError(
                f"an engine and its images take up to {SCRATCH_BYTES >> 30} GiB, and {folder.parent} has"
                f" {free / 2**30:.1f} free; give TMPDIR a folder with more"
            )
        try:
            yield folder
        finally:
            unmount_below(folder)


def remove_leftovers() -> None:
    """What runs that were killed left in the temporary folder: gigabytes each. Nobody uses it who holds the lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        say(f"removing {folder}, which a run that was killed left")
        unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def only_one() -> Iterator[None]:
    """Two engines at once would meet at the bridge docker0: the second waits."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def local_engine(may_install: bool, **features: bool) -> Iterator[dict[str, str]]:
    """Yields the environment in which `docker` and `docker compose` use an engine of our own, with these of its
    features switched."""
    require_engine(may_install)
    with ExitStack() as stack:
        stack.enter_context(only_one())
        remove_leftovers()
        folder = stack.enter_context(scratch_folder())
        programs = download_engine(folder, folder / "client" / "cli-plugins")
        stack.enter_context(network_put_back())
        yield stack.enter_context(dockerd(folder, programs, features))


@contextmanager
def dockerd(folder: Path, programs: Path, features: Mapping[str, bool]) -> Iterator[dict[str, str]]:
    """The engine process, of the programs in `programs` and of this machine's where there are none."""
    socket, log = folder / "docker.sock", folder / "dockerd.log"
    command = [
        str(programs / "sbin" / "dockerd"),
        f"--host=unix://{socket}",
        f"--data-root={folder / 'data'}",
        f"--exec-root={folder / 'state'}",
        f"--pidfile={folder / 'dockerd.pid'}",
        f"--config-file={folder / 'daemon.json'}",
    ]
    (folder / "daemon.json").write_text(json.dumps({"features": features}))
    environment = os.environ | {"DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(folder / "client")}
    environment.pop("DOCKER_CONTEXT", None)
    path = os.pathsep.join((str(programs / "sbin"), str(programs / "bin"), environment["PATH"]))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment | {"PATH": path}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while not engine_answers(environment):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Docker engine did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield environment
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def unmount_below(folder: Path) -> None:
    """The folder's own mount and those that a killed engine left: they would keep it from being removed."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
