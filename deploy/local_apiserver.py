"""A Kubernetes API server of our own for a test, with an etcd: on the loopback interface, gone afterwards.

There is no node, and no controller before `controllers` starts them: until then what is applied is read, completed,
admitted and stored, and nothing acts on it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_engine import run

READY_SECONDS = 180  # an API server makes its own objects first: ten seconds, and minutes on a machine that others use
COMMAND_SECONDS = 300


class ServerUnavailableError(Exception):
    """Which programs are missing. What goes wrong beyond that is a failure."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    output: str
    errors: str

    @property
    def warnings(self) -> list[str]:
        """What the server warned of."""
        lines = [line for line in self.errors.splitlines() if line.startswith("Warning:")]
        return [line.removeprefix("Warning:").strip() for line in lines]


@dataclass(frozen=True, slots=True)
class ApiServer:
    """One that answers at `url` to whoever has `token`, who may do everything."""

    url: str
    token: str
    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        """Of the certificate, and of the tokens that service accounts get."""
        return self.folder / "key.pem"

    @property
    def kubeconfig(self) -> Path:
        """The file by which kubectl and helm find it."""
        return self.folder / "kubeconfig"

    def get(self, path: str) -> Any:
        """An answer that is JSON."""
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.token}"})
        handlers = (
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.certificate))),
        )
        with urllib.request.build_opener(*handlers).open(request, timeout=30) as response:
            return json.load(response)

    def ask(self, *command: str | Path, text: str = "") -> Answer:
        """What kubectl or helm says, which fail where the server refuses something."""
        done = subprocess.run(
            [str(part) for part in command],
            input=text,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def kubectl(self, *words: str, documents: Sequence[Any] = ()) -> Answer:
        """kubectl, with `documents` as its file where its words say `--filename=-`."""
        return self.ask("kubectl", *words, text=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents]}))

    def introduced(self) -> None:
        """Writes `kubeconfig`."""
        named: dict[str, Any] = {
            "clusters": {"cluster": {"server": self.url, "certificate-authority": str(self.certificate)}},
            "users": {"user": {"token": self.token}},
            "contexts": {"context": {"cluster": "test", "user": "test"}},
        }
        whole = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        listed = {key: [{"name": "test", **value}] for key, value in named.items()}
        self.kubeconfig.write_text(json.dumps(whole | listed))  # which is YAML too


@contextmanager
def process(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs meanwhile and writes into `log`."""
    with log.open("wb") as output:
        started = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(timeout=30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def local_apiserver(etcd: str, kube_apiserver: str, ports: Sequence[int]) -> Iterator[ApiServer]:
    """Starts both programs, on three free ports, and yields the server once it is ready."""
    missing = [program for program in (etcd, kube_apiserver, "kubectl", "openssl") if shutil.which(program) is None]
    if missing:
        raise ServerUnavailableError(f"there is no {', no '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="tandem-apiserver-") as name:
        folder = Path(name)
        client, peer, port = (f"127.0.0.1:{each}" for each in ports)
        log = folder / "apiserver.log"
        server = ApiServer(f"https://{port}", secrets.token_hex(16), folder)
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", server.key, "-out", server.certificate)  # fmt: skip
        (folder / "tokens.csv").write_text(f'{server.token},test,test,"system:masters"\n')
        server.introduced()
        storage = [
            etcd,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://{client}",
            f"--advertise-client-urls=http://{client}",
            f"--listen-peer-urls=http://{peer}",
            f"--initial-advertise-peer-urls=http://{peer}",
            f"--initial-cluster=default=http://{peer}",
            "--unsafe-no-fsync",
        ]
        command = [
            kube_apiserver,
            f"--etcd-servers=http://{client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port.rpartition(':')[2]}",
            "--endpoint-reconciler-type=none",  # its own address is no endpoint that others could reach
            "--service-cluster-ip-range=10.0.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={server.key}",
            f"--service-account-signing-key-file={server.key}",
        ]
        with process(storage, folder / "etcd.log"), process(command, log) as running:
            deadline = time.monotonic() + READY_SECONDS
            while not ready(server):
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the API server did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.5)
            yield server


@contextmanager
def controllers(server: ApiServer, kube_controller_manager: str) -> Iterator[None]:
    """Meanwhile those controllers of Kubernetes act that make pods, count them, and scale."""
    acting = ("deployment", "replicaset", "disruption", "horizontal-pod-autoscaler", "serviceaccount")
    command = [
        kube_controller_manager,
        f"--kubeconfig={server.kubeconfig}",
        f"--controllers={','.join(f'{each}-controller' for each in acting)}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--leader-elect=false",
        "--horizontal-pod-autoscaler-sync-period=2s",
    ]
    with process(command, server.folder / "controllers.log"):
        yield


def ready(server: ApiServer) -> bool:
    """Whether it answers, and what it makes at its start is there."""
    with suppress(OSError):
        spaces = server.get("/api/v1/namespaces")["items"]
        return {"default", "kube-system"} <= {each["metadata"]["name"] for each in spaces}
    return False
