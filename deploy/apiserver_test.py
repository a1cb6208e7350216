"""Applies the manifests and the Helm chart to a real API server of Kubernetes, and looks at what it makes of them.

    python deploy/apiserver_test.py --crds FOLDER
    python deploy/apiserver_test.py --etcd FILE --kube-apiserver FILE     where they are not on the PATH
    python deploy/apiserver_test.py --since REVISION    its manifests first, and these over them
    python deploy/apiserver_test.py --skip-ok           exit code 0 where a program is missing; it says so loudly

The server is started here (deploy/local_apiserver.py). `FOLDER` has the definitions (CRDs) of cert-manager, the Gateway
API, KEDA, LeaderWorkerSet and the Prometheus operator; what needs one that is not there is skipped, loudly. Without
`helm` on the PATH the chart is.

Every case is applied over the one before it, so that each is an upgrade too. Of each it is checked, in columns:

accepted    no error, no warning, no unknown field; nobody else's fields are taken
kept        what is stored has every field as it was sent
again       a further apply writes no object
as new      what is stored is what the server would make of it in an empty namespace: the case before left nothing
pods        its pods are admitted where the *restricted* standard is enforced, without a warning
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from apiserver_checks import PODS, Check, Manifest, Row, complaints, hpa_of, moved, name_of, run_with
from compose_test import free_ports
from local_apiserver import Answer, ApiServer, ServerUnavailableError, controllers, local_apiserver
from local_engine import run, say

REPOSITORY = Path(__file__).resolve().parent.parent
MANIFESTS, CHART = REPOSITORY / "deploy" / "kubernetes", REPOSITORY / "deploy" / "helm" / "tandem"
WORKERS, RUNNING = "Deployment tandem-worker", 4
CONTROLLER_SECONDS = 120
QUESTIONS = (  # what whose account may do
    ("list", "pods", "tandem-gateway", "yes"),
    ("watch", "pods", "tandem-gateway", "yes"),
    ("get", "secrets", "tandem-gateway", "no"),
    ("delete", "pods", "tandem-gateway", "no"),
    ("list", "pods", "default", "no"),
)
COLUMNS = ("accepted", "kept", "again", "as new", "pods")
EVERYTHING = ("http", "gateway", "model-fetch", "tls", "routes", "prometheus-operator", "autoscaling")
# Folders of deploy/kubernetes: a resource, and components over it.
KUSTOMIZED: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("gpu",),
    ("gpu-cards",),
    ("local",),
    ("machines",),
    ("base", "http"),
    ("base", "gateway"),
    ("base", "model-fetch"),
    ("base", "model-image"),
    ("base", "http", "tls"),
    ("base", "http", "routes"),
    ("base", "prometheus-operator"),
    ("base", "autoscaling"),
    ("gpu", *EVERYTHING),
    ("base",),
)
ON = {"enabled": True}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two cards": {"worker": {"image": "tandem-worker:dev-cuda", "gpus": 2, "cpu": "8", "memory": "48Gi"}},
    "TLS, routes": {"http": ON, "tls": ON, "routes": ON},
    "a fleet": {
        "model": {"source": "organisation/name"},
        "gateway": ON,
        "prometheusOperator": ON,
        "autoscaling": ON,
    },
    "model of an image": {"model": {"image": "registry.example/tandem-model:dev"}},
    "numbers, own settings": {
        "worker": {
            "cpu": 3,
            "replicas": 3,
            "env": {"TANDEM_WORKER_DRAIN_GRACE_SECONDS": 30, "TANDEM_WORKER_MAX_WAITING_TOKENS": 4194304},
            "nodeSelector": {"disk": "fast"},
        },
        "tokenizer": {"env": {"MODEL_NAME": "other"}},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "defaults again": {},
}


def kustomized(kubernetes: Path, parts: Sequence[str]) -> list[Manifest]:
    """What kustomize makes of a folder with components."""
    with tempfile.TemporaryDirectory(prefix="tandem-kustomize-") as name:
        places = [os.path.relpath(kubernetes / part, Path(name).resolve()) for part in parts]
        own = {"resources": places[:1], "components": places[1:]}
        (Path(name) / "kustomization.yaml").write_text(yaml.safe_dump(own))
        return [each for each in yaml.safe_load_all(run("kubectl", "kustomize", name)) if each]


@contextmanager
def revision(name: str) -> Iterator[Path]:
    """The manifests as they were at another commit."""
    archive = subprocess.run(
        ["git", "archive", name, "deploy/kubernetes"], cwd=REPOSITORY, capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="tandem-revision-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder) / "deploy" / "kubernetes"


def with_replicas(documents: Sequence[Manifest], count: int) -> list[Manifest]:
    """As an overlay with `replicas` says it of the workers."""
    found = copy.deepcopy([*documents])
    for each in found:
        if name_of(each) == WORKERS:
            each["spec"]["replicas"] = count
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two in which kubectl applies, and the namespace in which it does here."""

    server: ApiServer
    name: str
    namespace: str

    def own(self, documents: Sequence[Manifest]) -> Sequence[Manifest]:
        return documents if self.namespace == "tandem" else moved(documents, self.namespace)

    def apply(self, documents: Sequence[Manifest]) -> Answer:
        flag = f"--server-side={json.dumps(self.name == 'server-side')}"
        return self.server.kubectl("apply", "--validate=strict", flag, "--filename=-", documents=documents)

    def handed_over(self, count: int) -> Answer:
        """Before an autoscaler takes over (docs/deployment.md): the number of workers is no longer kubectl's alone."""
        if self.name == "server-side":
            metadata = {"name": "tandem-worker", "namespace": self.namespace}
            number = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": count}}
            words = ("apply", "--server-side", "--field-manager=autoscaler", "--validate=false", "--filename=-")
            return self.server.kubectl(*words, documents=[number])
        noted = "kubectl.kubernetes.io/last-applied-configuration-"
        return self.server.kubectl("annotate", "deployment", "tandem-worker", f"--namespace={self.namespace}", noted)


def autoscaled(server: ApiServer, case: str, namespace: str, steps: Sequence[Callable[[], Answer]]) -> Row:
    """Workers that run stay when an autoscaler takes over, and an apply does not set back what it said."""
    *before, last = steps
    row = Row(case, 1)
    row.found["accepted"] = [told for step in before for told in complaints(step()) if "last-applied" not in told]
    row.found["kept"] = replicas(server, namespace, RUNNING, "when the autoscaler was turned on")
    scale = json.dumps({"spec": {"replicas": RUNNING + 3}})
    words = ("deployment", "tandem-worker", f"--namespace={namespace}", "--subresource=scale", f"--patch={scale}")
    run_with(server, "patch", *words, "--type=merge", "--field-manager=autoscaler")
    row.found["again"] = complaints(last()) + replicas(server, namespace, RUNNING + 3, "after the next apply")
    return row


def replicas(server: ApiServer, namespace: str, expected: int, when: str) -> list[str]:
    found = server.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/tandem-worker")["spec"]["replicas"]
    return [] if found == expected else [f"{found} instead of {expected} workers {when}"]


def kustomize_rows(check: Check, way: Way, since: str | None) -> Iterator[Row]:
    """Each folder and component, as kubectl applies them."""
    check.space(way.namespace)
    if since:
        with revision(since) as older:
            there = [parts for parts in KUSTOMIZED if all((older / part).is_dir() for part in parts)]
            for parts in (there[0], max(there, key=len)):
                documents = way.own(kustomized(older, parts))
                found = {"accepted": complaints(way.apply(documents))}
                yield Row(f"{way.name}, {since}: {', '.join(parts)}", len(documents), found=found)
    for parts in KUSTOMIZED:
        documents = way.own(kustomized(MANIFESTS, parts))
        yield check.look(f"{way.name}: {', '.join(parts)}", documents, partial(way.apply, documents))
    if "ScaledObject" in check.kinds:
        plain = way.own(with_replicas(kustomized(MANIFESTS, ("base",)), RUNNING))
        scaled = way.own(kustomized(MANIFESTS, ("base", "autoscaling")))
        last = partial(way.apply, scaled)
        steps = (partial(way.apply, plain), partial(way.handed_over, RUNNING), last, last)
        yield autoscaled(check.server, f"{way.name}: autoscaler", way.namespace, steps)


def chart_rows(check: Check) -> Iterator[Row]:
    """The chart with each set of values, one upgrade after the other."""
    if shutil.which("helm") is None:
        yield Row("the chart", 0, "there is no helm")
        return
    server, namespace = check.server, "tandem-chart"
    check.space(namespace)

    def helm(*words: str, values: dict[str, Any]) -> Answer:
        flags = (f"--namespace={namespace}", "--values=-")
        return server.ask("helm", *words, "tandem", CHART, *flags, text=yaml.safe_dump(values))

    def upgraded(values: dict[str, Any]) -> Answer:
        return helm("upgrade", "--install", "--reset-values", values=values)

    for case, values in VALUES.items():
        rendered = helm("template", values=values)
        documents = [each for each in yaml.safe_load_all(rendered.output) if each]
        if rendered.code:
            yield Row(f"chart: {case}", 0, found={"accepted": complaints(rendered)})
        else:
            yield check.look(f"chart: {case}", documents, partial(upgraded, values))
    if "ScaledObject" in check.kinds:
        plain, scaled = {"worker": {"replicas": RUNNING}}, {"autoscaling": ON}
        steps = (lambda: upgraded(plain), lambda: upgraded(scaled), lambda: upgraded(scaled))
        yield autoscaled(server, "chart: autoscaler", namespace, steps)


def further_rows(check: Check, way: Way) -> Iterator[Row]:
    """What KEDA makes of the manifests, what the gateway may do, and whether mistakes are seen."""
    scaled = [each for each in kustomized(MANIFESTS, ("base", "autoscaling")) if each["kind"] == "ScaledObject"]
    answer = check.made_new([hpa_of(each) for each in scaled])
    yield Row("KEDA's autoscaler", len(scaled), found={"accepted": complaints(answer)})
    found = []
    for verb, resource, who, expected in QUESTIONS:
        account = f"--as=system:serviceaccount:tandem:{who}"
        told = check.server.kubectl("auth", "can-i", verb, resource, "--namespace=tandem", account).output.strip()
        found += [] if told == expected else [f"{who} may {verb} {resource}: {told}, and it should be {expected}"]
    yield Row("rights in the namespace", len(QUESTIONS), found={"accepted": found})
    found = [
        f"{what} was applied without a word"
        for what, wrong in refusable(kustomized(MANIFESTS, ("base",))).items()
        if not complaints(way.apply(moved([wrong], PODS)))
    ]
    yield Row("what must be refused", 3, found={"accepted": found})


def refusable(documents: Sequence[Manifest]) -> dict[str, Manifest]:
    """Workers with a mistake each: without them being seen, that nothing was found would say nothing."""
    (workers,) = (each for each in documents if name_of(each) == WORKERS)
    misspelt, privileged, twice = (copy.deepcopy(workers) for _ in range(3))
    misspelt["spec"]["replica"] = 1
    privileged["spec"]["template"]["spec"]["hostNetwork"] = True
    variables = twice["spec"]["template"]["spec"]["containers"][0]["env"]
    variables.append(dict(variables[0]))
    return {"a misspelt field": misspelt, "a pod on the node's network": privileged, "a variable twice": twice}


def controlled_rows(check: Check, program: str) -> Iterator[Row]:
    """What Kubernetes' own controllers do with it: pods and budgets come, and an autoscaler's number stays."""
    if shutil.which(program) is None:
        yield Row("controllers", 0, f"there is no {program}")
        return
    server, way = check.server, Way(check.server, "server-side", "tandem-controlled")
    check.space(way.namespace)
    with controllers(server, program):
        for parts in (("base",), ("base", "http", "gateway"), ("gpu", "http", "gateway", "model-fetch"), ("base",)):
            documents = way.own(kustomized(MANIFESTS, parts))
            row = Row(f"controllers: {', '.join(parts)}", len(documents))
            row.found["accepted"] = complaints(way.apply(documents))
            row.found["pods"] = awaited(partial(check.undone, documents))
            yield row
        if "ScaledObject" not in check.kinds:
            return
        documents = way.own(kustomized(MANIFESTS, ("base", "autoscaling")))
        own = hpa_of(next(each for each in documents if each["kind"] == "ScaledObject"))
        own["spec"]["minReplicas"] = RUNNING
        row = Row("controllers: autoscaler", 1)
        row.found["accepted"] = complaints(server.kubectl("create", "--filename=-", documents=way.own([own])))
        row.found["kept"] = awaited(lambda: replicas(server, way.namespace, RUNNING, "that the autoscaler wants"))
        row.found["again"] = complaints(way.apply(documents)) + replicas(
            server, way.namespace, RUNNING, "after an apply"
        )
        yield row


def awaited(wrong: Callable[[], Iterable[str]]) -> list[str]:
    """What is still wrong when controllers had their time."""
    deadline = time.monotonic() + CONTROLLER_SECONDS
    while (found := [*wrong()]) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def defined(server: ApiServer, folder: Path) -> None:
    """Gives the server the definitions of others."""
    definitions = [
        each for file in sorted(folder.rglob("*.yaml")) for each in yaml.safe_load_all(file.read_text())
        if each and each["kind"] == "CustomResourceDefinition"
    ]  # fmt: skip
    run_with(server, "create", "--filename=-", documents=definitions)
    run_with(server, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
    say(f"{len(definitions)} definitions of others")


def printed(row: Row, width: int) -> None:
    cells = [
        "" if each not in row.found else f"{len(row.found[each])} wrong" if row.found[each] else "ok"
        for each in COLUMNS
    ]
    told = f"SKIPPED: {row.skipped}" if row.skipped else "".join(f"{cell:10}" for cell in cells)
    print(f"{row.case:{width}}{row.objects:8}  {told}", flush=True)


def apiserver_test(options: argparse.Namespace) -> list[Row]:
    """All cases on a server of our own, printed as they come."""
    with local_apiserver(options.etcd, options.kube_apiserver, free_ports(3)) as server:
        version = server.get("/version")["gitVersion"]
        say(f"an API server of Kubernetes {version}")
        if options.crds:
            defined(server, options.crds)
        check = Check.begun(server)
        ways = (Way(server, "server-side", "tandem"), Way(server, "client-side", "tandem-client"))
        rows, width = [], 66
        print(f"\n{'case':{width}}{'objects':>8}  {''.join(f'{each:10}' for each in COLUMNS)}")
        cases = (
            *(kustomize_rows(check, way, options.since) for way in ways),
            chart_rows(check),
            further_rows(check, ways[0]),
            controlled_rows(check, options.kube_controller_manager),
        )
        for row in chain(*cases):
            printed(row, width)
            rows.append(row)
        return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", default="etcd", help="the program, or its name on the PATH")
    parser.add_argument("--kube-apiserver", default="kube-apiserver", help="the program, or its name on the PATH")
    parser.add_argument("--kube-controller-manager", default="kube-controller-manager", help="as these")
    parser.add_argument("--crds", type=Path, help="a folder with definitions of others")
    parser.add_argument("--since", metavar="REVISION", help="a commit whose manifests are applied first")
    parser.add_argument("--skip-ok", action="store_true", help="exit code 0 where a program is missing")
    options = parser.parse_args()
    try:
        rows = apiserver_test(options)
    except ServerUnavailableError as reason:
        print(f"SKIPPED: nothing was applied to an API server: {reason}", file=sys.stderr, flush=True)
        return 0 if options.skip_ok else 3
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"\napiserver-test FAILED: {error}", file=sys.stderr, flush=True)
        return 1
    failed = [row for row in rows if row.failed]
    for row in failed:
        for column, found in row.found.items():
            for told in found:
                print(f"{row.case}: {column}: {told}", file=sys.stderr, flush=True)
    if failed:
        print(f"\napiserver-test FAILED in {len(failed)} of {len(rows)} cases", file=sys.stderr, flush=True)
        return 1
    say(f"passed in {sum(not row.skipped for row in rows)} cases, {sum(bool(row.skipped) for row in rows)} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
