"""What an API server makes of manifests: the checks of deploy/apiserver_test.py, which says what each of them is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from local_apiserver import Answer, ApiServer

NEW = "tandem-new"  # an empty namespace, where nothing is stored
PODS = "tandem-pods"  # one where accounts are, as pods need them
Manifest = dict[str, Any]


@dataclass(slots=True)
class Row:
    """A case, and what each check found: nothing, where all is well."""

    case: str
    objects: int
    skipped: str = ""
    found: dict[str, list[str]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(self.found.values())


def objects_in(text: str) -> list[Manifest]:
    """What kubectl prints as JSON: objects, or lists of them, one behind the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        each, end = decoder.raw_decode(text)
        found += each["items"] if each["kind"] == "List" else [each]
        text = text[end:]
    return found


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def moved(documents: Sequence[Manifest], namespace: str) -> list[Manifest]:
    """Those that lie in a namespace, in another one."""
    found = [copy.deepcopy(each) for each in documents if "namespace" in each["metadata"]]
    for each in found:
        each["metadata"]["namespace"] = namespace
    return found


def difference(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Where `stored` lacks or changes what was sent; what it has besides, it completed. Quantities are texts."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            yield from difference(value, stored.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for at, pair in enumerate(zip(sent, stored, strict=True)):
            yield from difference(*pair, f"{path}[{at}]")
    elif sent != stored and sent not in ({}, [], None) and not (isinstance(sent, int) and stored == str(sent)):
        yield f"{path.lstrip('.')}: sent {json.dumps(sent)[:200]}, stored {json.dumps(stored)[:200]}"


def content(manifest: Manifest) -> Manifest:
    """An object without what the server and Helm note about it."""
    own = {key: value for key, value in manifest.items() if key not in ("metadata", "status")}
    labels = manifest["metadata"].get("labels", {})
    return own | {"labels": {key: value for key, value in labels.items() if key != "app.kubernetes.io/managed-by"}}


def comparable(manifest: Manifest, autoscaled: bool) -> Manifest:
    """What is the same wherever an object lies: without addresses, and without the number that an autoscaler says."""
    found = content(manifest)
    left_out = {"clusterIP", "clusterIPs"} if manifest["kind"] == "Service" else {"replicas"} if autoscaled else set()
    return found | {"spec": {key: each for key, each in found.get("spec", {}).items() if key not in left_out}}


def pods_of(documents: Sequence[Manifest]) -> Iterator[Manifest]:
    """The pods that controllers would make."""
    for each in documents:
        templates: dict[str, Manifest] = {}
        if each["kind"] == "Deployment":
            templates[""] = each["spec"]["template"]
        if each["kind"] == "LeaderWorkerSet":
            found = each["spec"]["leaderWorkerTemplate"]
            templates = {"-leader": found["leaderTemplate"], "-rank": found["workerTemplate"]}
        for kind, template in templates.items():
            metadata = template["metadata"] | {"name": each["metadata"]["name"] + kind, "namespace": PODS}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def hpa_of(scaled: Manifest) -> Manifest:
    """The autoscaler that KEDA makes of a ScaledObject with one trigger."""
    spec = scaled["spec"]
    (trigger,) = spec["triggers"]
    target = {"type": trigger["metricType"], "averageValue": trigger["metadata"]["threshold"]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": f"keda-hpa-{scaled['metadata']['name']}", "namespace": NEW},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
            "minReplicas": spec["minReplicaCount"],
            "maxReplicas": spec["maxReplicaCount"],
            "metrics": [{"type": "External", "external": {"metric": {"name": "s0-prometheus"}, "target": target}}],
            **spec["advanced"]["horizontalPodAutoscalerConfig"],
        },
    }


def complaints(answer: Answer) -> list[str]:
    """What the server refused or warned of."""
    errors = [line for line in answer.errors.splitlines() if line.strip() and not line.startswith("Warning:")]
    return answer.warnings + (errors or ["it failed and said nothing"] if answer.code else [])


@dataclass(frozen=True, slots=True)
class Check:
    """The checks on one server, and the kinds of objects that it knows."""

    server: ApiServer
    kinds: frozenset[str]

    @staticmethod
    def begun(server: ApiServer) -> Check:
        """With two namespaces that enforce the restricted standard."""
        words = server.kubectl("api-resources", "--no-headers").output
        check = Check(server, frozenset(line.split()[-1] for line in words.splitlines()))
        check.space(NEW)
        check.space(PODS)
        accounts = [  # a controller would make the first
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": PODS}}
            for name in ("default", "tandem-gateway")
        ]
        run_with(server, "apply", "--server-side", "--filename=-", documents=accounts)
        return check

    def space(self, name: str) -> None:
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        run_with(self.server, "apply", "--server-side", "--filename=-", documents=[space])

    def stored(self, documents: Sequence[Manifest]) -> list[Manifest]:
        """As they are stored, in the order in which they were sent."""
        return objects_in(run_with(self.server, "get", "--filename=-", "--output=json", documents=documents))

    def made_new(self, documents: Sequence[Manifest]) -> Answer:
        words = ("create", "--dry-run=server", "--validate=strict", "--filename=-", "--output=json")
        return self.server.kubectl(*words, documents=documents)

    def look(self, case: str, documents: Sequence[Manifest], apply: Callable[[], Answer]) -> Row:
        """Applies a case, three times, and looks at what is there."""
        row = Row(case, len(documents))
        if unknown := {each["kind"] for each in documents} - self.kinds:
            row.skipped = f"the server has no definition of {', '.join(sorted(unknown))}"
            return row
        answer = apply()
        row.found["accepted"] = complaints(answer)
        if answer.code:
            return row
        stored = self.stored(documents)
        pairs = list(zip(documents, stored, strict=True))
        row.found["kept"] = [
            f"{name_of(sent)}: {told}" for sent, each in pairs for told in difference(content(sent), content(each))
        ]
        again = complaints(apply())  # a claim and a Gateway that are new are written once more, as they were
        before = {name_of(each): each["metadata"]["resourceVersion"] for each in self.stored(documents)}
        again += complaints(apply())
        after = {name_of(each): each["metadata"]["resourceVersion"] for each in self.stored(documents)}
        row.found["again"] = again + [f"{name} was written" for name in before if before[name] != after[name]]
        row.found["as new"] = self.residue(documents, stored)
        row.found["pods"] = complaints(self.made_new(list(pods_of(documents))))
        return row

    def undone(self, documents: Sequence[Manifest]) -> Iterator[str]:
        """What controllers have not done yet, or cannot do."""
        for each in self.stored(documents):
            status, told = each.get("status", {}), name_of(each)
            if each["kind"] in ("Deployment", "PodDisruptionBudget"):
                if status.get("observedGeneration") != each["metadata"]["generation"]:
                    yield f"{told} was not looked at"
                if each["kind"] == "PodDisruptionBudget" and status.get("expectedPods", 0) < 1:
                    yield f"{told} counts no pods"
                if each["kind"] == "Deployment" and status.get("updatedReplicas", 0) < 1:
                    yield f"{told} has no pod of its own version"
                for condition in status.get("conditions", []):
                    if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                        yield f"{told}: {condition['message']}"

    def residue(self, documents: Sequence[Manifest], stored: Sequence[Manifest]) -> list[str]:
        """What is stored otherwise than it would be if it were new."""
        answer = self.made_new(moved(documents, NEW))
        if answer.code:
            return complaints(answer)
        fresh = objects_in(answer.output)
        were = [each for each in stored if "namespace" in each["metadata"]]
        sent = [each for each in documents if "namespace" in each["metadata"]]
        found = []
        for said, new, old in zip(sent, fresh, were, strict=True):
            autoscaled = said["kind"] == "Deployment" and "replicas" not in said["spec"]
            wanted, there = comparable(new, autoscaled), comparable(old, autoscaled)
            found += [f"{name_of(said)}: {told}" for told in {*difference(wanted, there), *difference(there, wanted)}]
        return found


def run_with(server: ApiServer, *words: str, documents: Sequence[Manifest] = ()) -> str:
    """What kubectl prints; nothing else may go wrong here."""
    answer = server.kubectl(*words, documents=documents)
    if answer.code:
        raise RuntimeError(f"kubectl {' '.join(words)}: {answer.errors}")
    return answer.output
