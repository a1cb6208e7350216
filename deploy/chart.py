"""Makes the Helm chart (deploy/helm/tandem) of the manifests in deploy/kubernetes: the same objects, with values.

Each component becomes a switch: what its patches add, change or take away stands in the templates under a condition.
The chart's values.yaml says what can be changed, and its defaults are what the manifests say.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
MANIFESTS = HERE / "kubernetes"
CHART = HERE / "helm" / "tandem"
HEAD = "# Made by deploy/chart.py.\n"
NAMESPACE = "{{ .Release.Namespace }}"

# Folders of deploy/kubernetes, and the condition under which the chart has what they say. Left out: `local`, a model in
# the folder of a node, and `machines`, whose pods are of another kind.
COMPONENTS = {
    "base": "",
    "gpu": ".Values.worker.gpus",
    "gpu-cards": "gt (int .Values.worker.gpus) 1",
    "http": ".Values.http.enabled",
    "gateway": ".Values.gateway.enabled",
    "model-fetch": ".Values.model.source",
    "model-image": ".Values.model.image",
    "tls": ".Values.tls.enabled",
    "routes": ".Values.routes.enabled",
    "prometheus-operator": ".Values.prometheusOperator.enabled",
    "autoscaling": ".Values.autoscaling.enabled",
}
AS_THEY_ARE = {"rules.yaml", "dashboards.yaml"}  # full of braces that mean something to others
CONFIGURATION = {"MODEL_NAME": "model.name", "MODEL_SOURCE": "model.source"}


@dataclass(frozen=True, slots=True)
class Value:
    """A text of the chart's values, in their place."""

    path: str

    def __str__(self) -> str:
        return f"{{{{ .Values.{self.path} | toJson }}}}"


@dataclass(frozen=True, slots=True)
class Either:
    """What stands there under a condition, and otherwise; None is nothing."""

    condition: str
    then: Any
    otherwise: Any


@dataclass(slots=True)
class Resource:
    file: str
    condition: str
    tree: dict[str, Any]

    def __contains__(self, target: dict[str, str]) -> bool:
        names = {"kind": self.tree["kind"], "name": self.tree["metadata"]["name"]}
        return all(re.fullmatch(pattern, names[key]) for key, pattern in target.items())


def pod(resource: Resource) -> dict[str, Any]:
    tree: dict[str, Any] = resource.tree["spec"]["template"]["spec"]
    return tree


def merged(base: Any, patch: Any, condition: str) -> Any:
    """A strategic merge: maps by key, lists by the name of what is in them, null takes away."""
    if isinstance(base, Either) and base.condition == condition and base.then is not None:
        return Either(condition, merged(base.then, patch, ""), base.otherwise)
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base.get(key), new, condition) for key, new in patch.items()}
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(each, dict) for each in patch):
        found = list(base)
        for new in patch:
            places = [at for at, each in enumerate(base) if isinstance(each, dict) and each["name"] == new["name"]]
            if places:
                found[places[0]] = merged(base[places[0]], new, condition)
            else:
                found.append(Either(condition, new, None) if condition else new)
        return found
    return patch if base == patch or not condition else Either(condition, patch, base)


def operated(tree: Any, operation: dict[str, Any], condition: str) -> None:
    """A JSON patch: what is added at a list's end, and what is taken out of a map."""
    *path, last = operation["path"].strip("/").split("/")
    for step in path:
        tree = tree[int(step)] if isinstance(tree, list) else tree[step]
    match operation["op"], last:
        case "add", "-":
            tree.append(Either(condition, operation["value"], None))
        case "remove", _:
            tree[last] = Either(condition, None, tree[last])
        case _:
            raise ValueError(f"deploy/chart.py knows no {operation['op']} at {operation['path']}")


def resources() -> list[Resource]:
    """Everything that the components have or change, the base first."""
    found: list[Resource] = []
    for name, condition in COMPONENTS.items():
        folder = MANIFESTS / name
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for file in kustomization.get("resources", []):
            if file in AS_THEY_ARE or file.startswith("..") or file == "namespace.yaml":
                continue
            place = file if name == "base" else f"{name}.yaml"
            found += [Resource(place, condition, each) for each in yaml.safe_load_all((folder / file).read_text())]
        for patch in kustomization.get("patches", []):
            content = yaml.safe_load((folder / patch["path"]).read_text() if "path" in patch else patch["patch"])
            target = patch.get("target") or {"kind": content["kind"], "name": content["metadata"]["name"]}
            for resource in (each for each in found if target in each):
                if isinstance(content, list):
                    for operation in content:
                        operated(resource.tree, operation, condition)
                else:
                    resource.tree["spec"] = merged(resource.tree["spec"], copy.deepcopy(content["spec"]), condition)
    for resource in found:
        finished(resource)
    return found


def finished(resource: Resource) -> None:
    """What kustomize puts into each of the base, what the chart's values are about, and what only a chart has."""
    metadata = resource.tree["metadata"]
    metadata["namespace"] = ""  # the release's
    own = metadata["name"].removeprefix("tandem-")
    if not resource.condition:
        metadata.setdefault("labels", {})["app.kubernetes.io/part-of"] = "tandem"
    match resource.tree["kind"]:
        case "Deployment":
            if not resource.condition:
                resource.tree["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/part-of"] = "tandem"
            deployed(resource, own)
        case "ScaledObject":
            spec = resource.tree["spec"]
            put(spec, "minReplicaCount", "autoscaling.minReplicas")
            put(spec, "maxReplicaCount", "autoscaling.maxReplicas")
            put(spec["triggers"][0]["metadata"], "serverAddress", "autoscaling.prometheus")
        case "Gateway":
            put(resource.tree["spec"], "gatewayClassName", "routes.gatewayClass")
        case "HTTPRoute" | "GRPCRoute" as kind:
            put(resource.tree["spec"]["hostnames"], 0, f"routes.{kind.removesuffix('Route').lower()}Host")


def deployed(resource: Resource, own: str) -> None:
    spec = resource.tree["spec"]
    put(spec, "replicas", f"{own}.replicas")
    container = pod(resource)["containers"][0]
    for each in (container, *containers_of(pod(resource).get("initContainers"))):
        if "env" in each:
            each["env"] = [configured(variable) for variable in each["env"]]
        put(each, "image", f"{each['image'].removeprefix('tandem-').partition(':')[0]}.image")
    put(container["resources"]["requests"], "cpu", f"{own}.cpu")
    if own == "worker":
        put(container["resources"]["requests"], "memory", "worker.memory")
        limits = container["resources"]["limits"]
        limits["nvidia.com/gpu"] = Either(COMPONENTS["gpu"], "{{ .Values.worker.gpus | toString | quote }}", None)
        parallel = next(each for each in container["env"] if named(each) == "TANDEM_WORKER_TENSOR_PARALLEL")
        parallel.then["value"] = "{{ .Values.worker.gpus | toString | quote }}"
        spec[f'{{{{- if {COMPONENTS["autoscaling"]} }}}}{{{{- include "tandem.replicas" . }}}}{{{{- end }}}}'] = None
    put(container["resources"]["limits"], "memory", f"{own}.memory")
    for volume in pod(resource)["volumes"]:
        if named(volume) == "model":
            claim = volume["persistentVolumeClaim"]
            while isinstance(claim, Either):
                claim = claim.otherwise
            put(claim, "claimName", "model.claim")
            volume["image"].then["reference"] = Value("model.image")
    further = f'{{{{- include "tandem.env" .Values.{own}.env }}}}'
    if "env" in container:
        container["env"] = [*(unless_given(each, own) for each in container["env"]), further]
    else:
        container["env"] = Either(f".Values.{own}.env", [further], None)
    pod(resource)[f'{{{{- include "tandem.pod" (list $ .Values.{own}) }}}}'] = None


def unless_given(variable: Any, own: str) -> Either:
    """A variable that the values do not set: a server-side apply refuses a name that comes twice."""
    condition, other = f'not (hasKey .Values.{own}.env "{named(variable)}")', None
    if isinstance(variable, Either):
        condition, variable, other = f"and ({variable.condition}) ({condition})", variable.then, variable.otherwise
    return Either(condition, variable, other)


def named(item: Any) -> str:
    return str((item.then if isinstance(item, Either) else item)["name"])


def containers_of(tree: Any) -> list[dict[str, Any]]:
    return tree.then if isinstance(tree, Either) else tree or []


def put(tree: Any, key: Any, path: str) -> None:
    """A value takes the place of what the manifest says, which must be its default."""
    said = tree[key]
    while isinstance(said, Either) and said.otherwise is not None:
        said = said.otherwise
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    for step in path.split("."):
        default = default[step]
    if default != said and not isinstance(said, Value):
        raise ValueError(f"values.yaml: {path} is {default!r}, and the manifests say {said!r}")
    taken = isinstance(tree[key], Either) and tree[key].then is None
    tree[key] = Either(tree[key].condition, None, Value(path)) if taken else Value(path)


def configured(variable: Any) -> Any:
    """What the ConfigMap says of a variable is a value of the chart."""
    if isinstance(variable, Either):
        return Either(variable.condition, configured(variable.then), None)
    key = variable.get("valueFrom", {}).get("configMapKeyRef", {}).get("key")
    return {"name": variable["name"], "value": Value(CONFIGURATION[key])} if key else variable


def scalar(value: Any) -> str:
    if isinstance(value, Value):
        return str(value)
    if isinstance(value, str):
        if "{{" in value:
            return value
        text = re.sub(r"^(tandem-\w+|--service-discovery-namespace=)(\.?)tandem(?=$|\.svc)", rf"\1\2{NAMESPACE}", value)
        if not re.fullmatch(r"[A-Za-z/][\w./-]*", text) or isinstance(yaml.safe_load(text), bool | None):
            return json.dumps(text)
        return text
    return json.dumps(value)


def lines(tree: Any, indent: str = "") -> Iterator[str]:
    """The template of a tree, block by block."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key.startswith("{{"):
                yield key
            else:
                yield from conditional(value, lambda each, key=key: entry(key, each, indent))
    else:
        for item in tree:
            if isinstance(item, str) and item.startswith("{{-"):
                yield item
            else:
                yield from conditional(item, lambda each: element(each, indent))


def conditional(value: Any, written: Any) -> Iterator[str]:
    if not isinstance(value, Either):
        yield from written(value)
        return
    if value.then is None:
        yield f"{{{{- if not ({value.condition}) }}}}"
        yield from conditional(value.otherwise, written)
    else:
        yield f"{{{{- if {value.condition} }}}}"
        yield from written(value.then)
        if value.otherwise is not None:
            yield "{{- else }}"
            yield from conditional(value.otherwise, written)
    yield "{{- end }}"


def entry(key: str, value: Any, indent: str) -> Iterator[str]:
    if key == "namespace":
        value = NAMESPACE
    if isinstance(value, dict | list) and value:
        yield f"{indent}{key}:"
        yield from lines(value, indent + "  ")
    else:
        yield f"{indent}{key}: {scalar(value)}"


def element(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{indent}- {scalar(value)}"
        return
    first, *rest = lines(value, indent + "  ")
    if first.startswith("{{"):
        raise ValueError(f"the first key of an element has a condition: {value}")
    yield f"{indent}- {first.strip()}"
    yield from rest


def schema(values: Any) -> dict[str, Any]:
    """What the chart takes: the keys of values.yaml, with values like theirs."""
    if isinstance(values, dict) and values:
        properties = {key: schema(value) for key, value in values.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(values, dict):
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    if isinstance(values, bool):
        return {"type": "boolean"}
    if isinstance(values, int):
        return {"type": "integer", "minimum": 0}
    return {"type": "array"} if isinstance(values, list) else {"type": ["string", "number"]}


def templates() -> dict[Path, str]:
    """The chart's made files."""
    files: dict[str, list[str]] = {}
    for resource in resources():
        text = list(lines(resource.tree))
        if resource.condition:
            text = [f"{{{{- if {resource.condition} }}}}", "---", *text, "{{- end }}"]
        else:
            text = ["---", *text]
        files.setdefault(resource.file, []).extend(text)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values["global"] = {}  # Helm's own
    wanted = {"$schema": "http://json-schema.org/draft-07/schema#"} | schema(values)
    made = {CHART / "templates" / name: HEAD + "\n".join(text) + "\n" for name, text in files.items()}
    return made | {CHART / "values.schema.json": json.dumps(wanted, indent=1) + "\n"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    options = parser.parse_args()
    made = templates()
    if options.check:
        stale = [path.name for path, text in made.items() if not path.is_file() or path.read_text() != text]
        if stale:
            print(f"stale files of the chart: {', '.join(stale)}; run python deploy/chart.py", file=sys.stderr)
        return bool(stale)
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
