"""Starts the real stack of docker-compose.yml, asks it for a completion, checks it, and takes it down again.

    python deploy/compose_test.py              a Docker engine that answers is used, with public base images
    python deploy/compose_test.py --install    where none answers, one of our own is started for the test
                                               (root on Debian or Ubuntu), with base images made on this machine
    python deploy/compose_test.py --draw FOLDER    draws the dashboards there too, under load
    python deploy/compose_test.py --skip-ok    exit code 0 where no engine is to be had (no root, no Debian, nothing
                                               installed without --install); it says so loudly. All else fails
    python deploy/compose_test.py --sdk-after FILE    while the SDK is being installed: it is there when this file is

Needs the SDK in the Python that runs it, once the stack stands. Whatever happens, containers, images, volumes and
engine are gone afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_engine import EngineUnavailableError, engine_answers, local_engine, run, say, scratch_folder
from local_images import local_base_image, local_prometheus_image

REPOSITORY = Path(__file__).resolve().parent.parent
OWN_SERVICES = ("tokenizer", "worker", "http")
BUILT_SERVICES = (*OWN_SERVICES, "gateway")
SERVICES = (*BUILT_SERVICES, "prometheus")
JOBS = {
    "tandem-tokenizer": 1,
    "tandem-worker": 2,
    "tandem-http": 1,
    "tandem-gateway": 1,
    "prometheus": 1,
}  # targets of each job, with two workers
BUILD_SECONDS = 1800  # torch is large
INSTALL_SECONDS = 1800  # so is it for what installs the SDK meanwhile
PANEL_SECONDS = 240  # two scrapes under load for each panel; all queries take a minute on a machine that others use
DRAWN_SECONDS = 180  # of load, that dashboards are drawn with
STOP_SECONDS = 30  # a process that has not ended by then is killed, and its exit code tells


@dataclass(frozen=True, slots=True)
class Stack:
    """The compose project under test."""

    environment: dict[str, str]

    def docker(self, *arguments: str, timeout: float = 900) -> str:
        return run("docker", *arguments, env=self.environment, cwd=REPOSITORY, timeout=timeout)

    def compose(self, *arguments: str, timeout: float = 900) -> str:
        return self.docker("compose", "--progress=plain", *arguments, timeout=timeout)

    def containers(self, service: str) -> list[str]:
        """Names, in order."""
        return sorted(self.compose("ps", "--all", "--format={{.Name}}", service).split())

    def inspect(self, container: str) -> dict[str, object]:
        details: dict[str, object] = json.loads(self.docker("inspect", container))[0]
        return details

    def address(self, service: str, port: int, index: int = 1) -> str:
        """Where this machine reaches a published port."""
        return self.compose("port", f"--index={index}", service, str(port)).strip()

    def image(self, service: str) -> str:
        return f"tandem-{service}:{self.environment['TANDEM_VERSION']}"


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    started = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


def free_ports(count: int) -> range:
    """Consecutive ports of the loopback interface that nobody listens on."""
    while True:
        with socket.socket() as first, contextlib.ExitStack() as stack:
            first.bind(("127.0.0.1", 0))
            start: int = first.getsockname()[1]
            try:
                for port in range(start + 1, start + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except (OSError, OverflowError):
                continue
            return range(start, start + count)


def project_environment(base: dict[str, str]) -> dict[str, str]:
    """A project of its own, on free ports, with the demo model: nothing that runs here already is disturbed."""
    tokenizer, prometheus, http, gateway, first_worker, last_worker = free_ports(6)
    project = f"tandem-test-{os.getpid()}"
    own = {
        "COMPOSE_PROFILES": "http,gateway",
        "COMPOSE_PROJECT_NAME": project,
        "WORKER_GATEWAY": "true",
        "GATEWAY_WORKERS": f"grpc://{project}-worker-1:50052 grpc://{project}-worker-2:50052",
        "GATEWAY_PORT": str(gateway),
        "TANDEM_VERSION": f"test-{os.getpid()}",
        "MODEL_DIR": "./models/demo",
        "MODEL_NAME": "demo",
        "BIND_ADDRESS": "127.0.0.1",
        "TOKENIZER_PORT": str(tokenizer),
        "PROMETHEUS_PORT": str(prometheus),
        "HTTP_PORT": str(http),
        "WORKER_PORT": f"{first_worker}-{last_worker}",  # one of them for each worker
        "WORKER_THREADS": "1",
    }
    return base | own


# ------------------------------------------------------------------------------------------------------------- checks


def check(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def soon(condition: Callable[[], str], seconds: float, what: str) -> None:
    """Waits until `condition` returns no complaint; the last complaint is the failure."""
    deadline = time.monotonic() + seconds
    while complaint := condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}, after {seconds:.0f} s: {complaint}")
        time.sleep(0.5)


def await_sdk(stamp: Path) -> None:
    """Waits until this environment, whose installation ends with this file, has the SDK."""
    soon(lambda: "" if stamp.exists() else f"no {stamp}", INSTALL_SECONDS, "the SDK is installed")
    # Or else what leads to editable installations is read at starts only.
    site.addsitedir(sysconfig.get_path("purelib"))


def check_completion(stack: Stack) -> None:
    """The same seeded completion from each of the two workers, streamed, through the SDK on the host."""
    from tandem.client import Client

    texts = []
    for index in (1, 2):
        addresses = {"tokenizer": stack.address("tokenizer", 50051), "worker": stack.address("worker", 50052, index)}
        with Client(**addresses) as client, client.stream("ROMEO:\n", max_tokens=40, seed=7, timeout=60) as stream:
            texts.append("".join(chunk.text for chunk in stream))
            usage = stream.result.usage
        check(0 < usage.completion_tokens <= 40, f"worker {index} counts {usage.completion_tokens} output tokens")
    check(bool(texts[0].strip()), "the completion is empty")
    check(texts[0] == texts[1], f"two workers answer the same request differently: {texts!r}")
    say(f"two workers answered alike: {texts[0]!r}")


def over_http(stack: Stack, prompt: str, service: str = "http", **parameters: object) -> str:
    """The text of a completion through the HTTP door, or the gateway, streamed."""
    body = json.dumps({"model": "demo", "prompt": prompt, "stream": True, **parameters}).encode()
    url = f"http://{stack.address(service, 8000)}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        events = [line[len(b"data: ") :].strip() for line in response if line.startswith(b"data: ")]
    check(events[-1] == b"[DONE]", f"the stream ends with {events[-1:]}")
    choices = [json.loads(event)["choices"] for event in events[:-1]]
    return "".join(each[0]["text"] for each in choices if each)


def check_http(stack: Stack) -> None:
    """The door gives the text that the SDK gives, and so does the gateway, which puts no BOS before it."""
    from tandem.client import Client

    addresses = {"tokenizer": stack.address("tokenizer", 50051), "worker": stack.address("worker", 50052)}
    with Client(**addresses) as client:
        expected = client.generate("ROMEO:\n", max_tokens=40, seed=7, timeout=60).text
    told = over_http(stack, "ROMEO:\n", max_tokens=40, seed=7)
    check(told == expected, f"over HTTP {told!r} instead of {expected!r}")
    greedy = {"max_tokens": 40, "temperature": 0.0}
    told, by_smg = over_http(stack, "ROMEO:\n", **greedy), ""

    def loaded() -> str:
        nonlocal by_smg
        try:
            by_smg = over_http(stack, "<s>ROMEO:\n", "gateway", **greedy)
        except OSError as error:  # its tokenizer is still on its way
            return str(error)
        return ""

    soon(loaded, 120, "the gateway answers")
    check(by_smg == told, f"through the gateway {by_smg!r} instead of {told!r}")


def check_discovery(stack: Stack) -> None:
    """One name is all that a client inside the network has to know."""
    (tokenizer,) = stack.containers("tokenizer")
    told = stack.docker("exec", tokenizer, "tandem", "status", "--json", "--worker-address", "dns:///worker:50052")
    states = {report["address"]: report["server"]["state"] for report in json.loads(told)}
    check(len(states) == 2 and set(states.values()) == {"serving"}, f"behind the name of the workers are {states}")


def prometheus(stack: Stack, path: str, **query: str) -> dict[str, object]:
    address = stack.address("prometheus", 9090)
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        answer: dict[str, object] = json.load(response)["data"]
    return answer


def check_rules(stack: Stack) -> None:
    """The unit tests of the rules, with the promtool of the image that evaluates them."""
    image, tests = stack.inspect(stack.containers("prometheus")[0])["Config"]["Image"], "tests/deploy"
    inside = [
        "--rm",
        "--network=none",
        f"--volume={REPOSITORY}:/source:ro",
        "--workdir=/source",
        "--entrypoint=promtool",
    ]
    files = [f"{tests}/{file.name}" for file in sorted((REPOSITORY / tests).glob("*_test.yml"))]
    stack.docker("run", *inside, str(image), "test", "rules", *files)


def check_prometheus(stack: Stack) -> None:
    """Every replica is found and up, every rule evaluates, and the completion's tokens have arrived."""

    def targets() -> str:
        found = [
            (t["labels"]["job"], t["health"], t["lastError"]) for t in prometheus(stack, "targets")["activeTargets"]
        ]
        counted = {job: sum(health == "up" for name, health, _ in found if name == job) for job in JOBS}
        return (
            "" if counted == JOBS and len(found) == sum(JOBS.values()) else f"targets up {counted} of {JOBS}: {found}"
        )

    def rules() -> str:
        every = [rule for group in prometheus(stack, "rules")["groups"] for rule in group["rules"]]
        bad = [(rule["name"], rule["health"], rule.get("lastError")) for rule in every if rule["health"] != "ok"]
        return f"rules {bad}" if bad or not every else ""

    def tokens() -> str:
        result = prometheus(stack, "query", query="min(vllm:generation_tokens_total)")["result"]
        return "" if result and float(result[0]["value"][1]) > 0 else f"generated tokens: {result}"

    def quiet() -> str:
        firing = [alert["labels"] for alert in prometheus(stack, "alerts")["alerts"] if alert["state"] == "firing"]
        return f"alerts fire: {firing}" if firing else ""

    soon(targets, 60, "Prometheus finds all targets up")
    soon(rules, 60, "all rules are healthy")
    soon(tokens, 60, "the tokens of both workers are counted, under vLLM's name too")
    soon(quiet, 1, "no alert fires")


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by their files' names."""
    files = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
    return {file.name: json.loads(file.read_text()) for file in files}


def as_sent(expression: str) -> str:
    """A query as Grafana sends it, with all that its variables can be."""
    return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "1m"))


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """What each panel and each variable of the dashboards asks; with its place."""
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}, {panel['title']} {target['refId']}", as_sent(target["expr"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
                metric, _, matchers = series.rstrip("}").partition("{")
                yield f"{name}, ${variable['name']}", f'{metric}{{{label}!="",{matchers}}}'


def some_traffic(stack: Stack) -> None:
    """A little of everything that the dashboards draw as a ratio or a quantile: without it they say 0/0."""
    from tandem.client import Client, Regex

    over_http(stack, "ROMEO:\n", max_tokens=8)
    over_http(stack, "<s>ROMEO:\n" * 16, "gateway", max_tokens=8)
    for index in range(1, 3):
        addresses = {"tokenizer": stack.address("tokenizer", 50051), "worker": stack.address("worker", 50052, index)}
        with Client(**addresses, timeout=60) as client:
            client.generate("ROMEO:\n", max_tokens=8)
            client.encode(f"{time.monotonic()} " * 20_000)  # in no cache, and so long that a thread takes it
            client.generate(
                "the the the the", guided=Regex("( the){16}"), max_tokens=16, draft_tokens=4, prompt_lookup=1
            )


def has_numbers(answer: dict[str, Any]) -> bool:
    """Whether something of an instant query's answer can be drawn: 0/0 gives a series of NaN, which is no data."""
    return any(math.isfinite(float(series["value"][1])) for series in answer["result"])


def check_dashboards(stack: Stack) -> None:
    """Every panel has numbers after a completion, and every variable has values."""
    queries = dict(dashboard_queries())
    check(len(queries) > 100, f"the dashboards ask {len(queries)} queries")
    for board in boards().values():  # these find nothing while nothing happens
        for line in board["annotations"]["list"]:
            prometheus(stack, "query", query=line["expr"])

    def empty() -> str:
        some_traffic(stack)
        for place, query in list(queries.items()):
            if has_numbers(prometheus(stack, "query", query=query)):
                del queries[place]
        return f"no data: {'; '.join(queries)}" if queries else ""

    soon(empty, PANEL_SECONDS, "all panels have had data")


def draw_dashboards(stack: Stack, folder: Path) -> None:
    """Puts every board under a load of DRAWN_SECONDS and draws what it shows of them."""
    from draw_dashboards import draw

    began, ended = time.time(), time.monotonic() + DRAWN_SECONDS
    while time.monotonic() < ended:
        some_traffic(stack)

    def curves(expression: str) -> list[dict[str, Any]]:
        span = {"start": f"{began:.0f}", "end": f"{time.time():.0f}", "step": "5"}
        found: list[dict[str, Any]] = prometheus(stack, "query_range", query=as_sent(expression), **span)["result"]
        return found

    for name, board in boards().items():
        draw(board, curves, folder / f"dashboard-{Path(name).stem}.png")


def check_hardening(stack: Stack) -> None:
    """What docker-compose.yml promises holds in the running containers."""
    for service in SERVICES:
        for name in stack.containers(service):
            details = stack.inspect(name)
            host = details["HostConfig"]
            check(host["ReadonlyRootfs"] is True, f"{name}: the root filesystem can be written")
            check(host["CapDrop"] == ["ALL"], f"{name}: capabilities {host['CapDrop']}")
            check(host["Memory"] > 0 and host["PidsLimit"] > 0, f"{name}: no limit of memory or processes")
            check(details["State"]["Health"]["Status"] == "healthy", f"{name}: {details['State']['Health']}")
            published = [
                binding for bindings in details["NetworkSettings"]["Ports"].values() for binding in bindings or []
            ]
            check(len(published) == 1, f"{name}: published ports {published}")
            check(published[0]["HostIp"] == "127.0.0.1", f"{name}: published at {published[0]['HostIp']}")
            for mount in details["Mounts"]:
                check(mount["Type"] != "bind" or mount["RW"] is False, f"{name}: {mount['Destination']} can be written")
            facts = process_facts(stack, name)
            check(facts["Uid"].split()[0] != "0", f"{name}: runs as root")
            check(int(facts["CapEff"], 16) == 0 and facts["NoNewPrivs"] == "1", f"{name}: privileges {facts}")
    worker = stack.containers("worker")[0]
    probe = "import pathlib; pathlib.Path('{}/probe').touch()"
    for folder, writable in (("/", False), ("/opt/tandem", False), ("/model", False), ("/tmp", True)):
        done = subprocess.run(
            ["docker", "exec", worker, "python", "-c", probe.format(folder.rstrip("/"))],
            env=stack.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        check(
            (done.returncode == 0) == writable, f"{worker}: writing to {folder} ended {done.returncode}: {done.stderr}"
        )


def process_facts(stack: Stack, container: str) -> dict[str, str]:
    """/proc/1/status of a container, read from outside: an image need not have a `cat`."""
    pid = stack.inspect(container)["State"]["Pid"]
    text = (
        Path(f"/proc/{pid}/status").read_text()
        if os.geteuid() == 0
        else stack.docker("exec", container, "cat", "/proc/1/status")
    )
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def check_logs(stack: Stack) -> None:
    """The services have nothing to warn of: compiled code, say, that the images do not have."""
    for service in OWN_SERVICES:
        lines = stack.compose("logs", "--no-log-prefix", "--no-color", service).splitlines()
        told = [json.loads(line[line.index("{") :]) for line in lines if "{" in line]
        check(len(told) >= 2, f"{service} logs {lines}")
        warnings = [f"{line['level']}: {line['message']}" for line in told if line["level"] not in ("debug", "info")]
        check(not warnings, f"{service} logs {warnings}")


def check_small_images_have_no_torch(stack: Stack) -> None:
    listing = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    for service in ("tokenizer", "http"):
        image = stack.image(service)
        installed = stack.docker("run", "--rm", "--network=none", "--entrypoint=python", image, "-c", listing).split()
        check("tandem-llm" in installed, f"the image lists {installed}")
        heavy = {"torch", "triton", "safetensors"} & set(installed)
        check(not heavy, f"the {service} image has {heavy}")
        say(f"the {service} image has {len(installed)} distributions, none of them torch")


def check_gpu_overlay(stack: Stack) -> None:
    """Compose reads it, and what it adds does not take away limits or hardening. It needs no GPU to be read."""
    files = ["--file=docker-compose.yml", "--file=deploy/docker/compose.gpu.yml"]
    worker = json.loads(stack.compose(*files, "config", "--format=json"))["services"]["worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    check(device["capabilities"] == ["gpu"] and device["driver"] == "nvidia", f"devices: {device}")
    check("/whl/cu" in worker["build"]["args"]["TORCH_INDEX"], f"build arguments: {worker['build']['args']}")
    check(worker["environment"]["TANDEM_WORKER_DEVICE"] == "cuda", f"environment: {worker['environment']}")
    check(worker["read_only"] and worker["cap_drop"] == ["ALL"], "the overlay takes the hardening away")
    check(int(worker["deploy"]["resources"]["limits"]["memory"]) > 0, "the overlay takes the memory limit away")


def check_stop(stack: Stack) -> None:
    """SIGTERM reaches each service's process, which ends by itself."""
    started = time.monotonic()
    stack.compose("stop", f"--timeout={STOP_SECONDS}")
    say(f"everything stopped in {time.monotonic() - started:.1f} s")
    for service in SERVICES:
        for name in stack.containers(service):
            state = stack.inspect(name)["State"]
            check(state["ExitCode"] == 0 and not state["OOMKilled"], f"{name} ended with {state['ExitCode']}: {state}")


# ---------------------------------------------------------------------------------------------------------------- run


@contextlib.contextmanager
def running(stack: Stack) -> Iterator[None]:
    """The stack, built and started by the command of the README; its logs are shown when something fails."""
    try:
        with step("building the images and starting the stack"):
            up = ["up", "--build", "--detach", "--wait", "--wait-timeout=180", "--scale=worker=2"]
            stack.compose(*up, timeout=BUILD_SECONDS)
        sizes = stack.docker(
            "images", "--format={{.Repository}} {{.Size}}", "--filter=label=org.opencontainers.image.title"
        )
        say(f"images: {', '.join(sizes.splitlines())}")
        yield
    except Exception:
        with contextlib.suppress(Exception):
            say("the state and the last lines of each container:")
            print(stack.compose("ps", "--all"), stack.compose("logs", "--tail=60"), sep="\n")
        raise
    finally:
        with contextlib.suppress(Exception), step("taking the stack down"):
            stack.compose("down", "--volumes", "--remove-orphans", "--timeout=10")
        for service in BUILT_SERVICES:
            with contextlib.suppress(Exception):
                stack.docker("image", "rm", "--force", stack.image(service))


def smoke_test(environment: dict[str, str], sdk_after: Path | None, pictures: Path | None) -> None:
    stack = Stack(project_environment(environment))
    with running(stack):
        if sdk_after is not None:
            with step("waiting for the SDK"):
                await_sdk(sdk_after)
        with step("a completion through each worker"):
            check_completion(stack)
            check_http(stack)
            check_discovery(stack)
        with step("hardening"):
            check_hardening(stack)
            check_small_images_have_no_torch(stack)
            check_gpu_overlay(stack)
            check_logs(stack)
        with step("Prometheus"):
            check_prometheus(stack)
            check_rules(stack)
        with step("dashboards"):
            check_dashboards(stack)
            if pictures is not None:
                draw_dashboards(stack, pictures)
        with step("stopping"):
            check_stop(stack)


def test_with_any_engine(may_install: bool, *options: Path | None) -> None:
    if engine_answers(dict(os.environ)):
        say("using the Docker engine that answers here")
        smoke_test(dict(os.environ), *options)
        return
    with contextlib.ExitStack() as stack:
        with step("starting a Docker engine"):
            environment = stack.enter_context(local_engine(may_install))
        folder = stack.enter_context(scratch_folder())
        with step("making base images"):
            environment["BASE_IMAGE"] = stack.enter_context(local_base_image(folder, environment))
            environment["PROMETHEUS_IMAGE"] = local_prometheus_image(folder, environment["BASE_IMAGE"], environment)
        smoke_test(environment, *options)


def stop(number: int, _: object) -> None:
    """Everything is taken down on the way out, which a second signal does not disturb."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description="Smoke test of docker-compose.yml with a real Docker engine.")
    parser.add_argument("--install", action="store_true", help="install what an engine of our own needs (apt-get)")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the dashboards under load")
    parser.add_argument("--skip-ok", action="store_true", help="exit code 0 where no engine is to be had")
    parser.add_argument("--sdk-after", type=Path, metavar="FILE", help="the SDK is there as soon as this file is")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    started = time.monotonic()
    try:
        test_with_any_engine(options.install, options.sdk_after, options.draw)
    except EngineUnavailableError as reason:
        print(f"\n{'=' * 100}\nSKIPPED: docker-compose.yml was NOT tested: {reason}\n{'=' * 100}\n", flush=True)
        return 0 if options.skip_ok else 3
    except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"\ncompose-test FAILED: {error}", file=sys.stderr, flush=True)
        return 1
    say(f"passed in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
