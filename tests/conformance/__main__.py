"""Runs each client's script, in the environment that is given, against the demo model behind a door and behind smg."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from tests.integration.smg_process import HERE, free_port, running_smg
from tests.integration.worker_process import running_worker

FOLDER = Path(__file__).parent
MODEL = FOLDER.parents[1] / "models" / "demo"
START_SECONDS = 300.0
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}
SPEAKERS = ("ROMEO", "JULIET", "NURSE", "TYBALT", "MERCUTIO", "BENVOLIO", "CAPULET", "PARIS")

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: {kind}
doc_to_text: "{{{{text}}}}"
{rest}
metric_list:
  - metric: {metric}
"""
# What follows in the corpus, and what never does: a model that scores texts rightly chooses right.
DATA = """{"text": "ROMEO:\\nGood", "choices": [" night", " zzxq vvkj"], "right": 0}
{"text": "JULIET:\\nGood", "choices": [" qqzx", " night"], "right": 1}
"""


def main() -> None:
    """Exits with what failed."""
    python = Path(sys.argv[1])  # of the environment with the clients
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    services = subprocess.Popen([sys.executable, "-m", "tandem.client", "serve", "--model", str(MODEL),
                                 "--tokenizer-port", str(free_port()), "--worker-port", str(free_port()),
                                 "--http-port", str(port)])  # fmt: skip
    try:
        wait(url, services)
        tasks = tasks_in(Path(tempfile.mkdtemp(prefix="tandem-conformance-")))
        failed = [name for name, command in commands(python, url, tasks).items() if subprocess.run(command).returncode]
        if not all_right(tasks):
            failed.append("lm-eval's choices are not all right")
        failed += loads(python, url, tasks)
    finally:
        services.terminate()
        services.wait(60)
    failed += asyncio.run(through_smg(python))
    print(f"failed: {', '.join(failed)}" if failed else "all clients passed")
    sys.exit(bool(failed))


async def through_smg(python: Path) -> list[str]:
    """Runs lm-eval against smg and two workers; what failed. Texts only: smg passes on no logprobs of prompts."""
    if not HERE:
        print("SKIPPED: smg is not installed")
        return []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            started = running_worker(folder / name, f"--model={MODEL}", "--model-name=demo", "--gateway")
            workers.append((await stack.enter_async_context(started)).address)
        client = await stack.enter_async_context(running_smg(folder, workers, "demo"))
        url, tasks = str(client.base_url).removesuffix("/v1/"), tasks_in(folder)
        talks = {
            "smg, lm-eval local-completions": harness(
                python, url, tasks, "local-completions", "completions", ",tokenizer_backend=None", "--tasks", "talk"
            ),
            "smg, lm-eval local-chat-completions": harness(
                python, url, tasks, "local-chat-completions", "chat/completions", "", "--tasks", "talk",
                "--apply_chat_template",
            ),
        }  # fmt: skip
        return [
            name for name, command in talks.items() if (await asyncio.to_thread(subprocess.run, command)).returncode
        ]


def wait(url: str, services: subprocess.Popen[bytes]) -> None:
    """Waits until the door serves."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and services.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit("the services did not start")


def tasks_in(folder: Path) -> Path:
    """The folder, with tasks for lm-eval in it."""
    (folder / "data.jsonl").write_text(DATA)
    tasks = {
        "choices": ("multiple_choice", "doc_to_choice: choices\ndoc_to_target: right", "acc"),
        "talk": ("generate_until", 'doc_to_target: "{{choices[right]}}"\n'
                 'generation_kwargs: {until: ["\\n"], max_gen_toks: 8}', "exact_match"),
    }  # fmt: skip
    for name, (kind, rest, metric) in tasks.items():
        text = TASK.format(name=name, data=folder / "data.jsonl", kind=kind, rest=rest, metric=metric)
        (folder / f"{name}.yaml").write_text(text)

    return folder


def harness(python: Path, url: str, tasks: Path, model: str, path: str, more: str, *rest: str) -> list[str]:
    """lm-eval against a server with OpenAI's interface."""
    arguments = f"model=demo,base_url={url}/v1/{path},num_concurrent=2,max_retries=1{more}"
    return [str(python.with_name("lm_eval")), "run", "--model", model, "--model_args", arguments,
            "--include_path", str(tasks), "--output_path", str(tasks / "out"), *rest]  # fmt: skip


def all_right(tasks: Path) -> bool:
    """Whether lm-eval found each choice that it had to find."""
    told = [json.loads(path.read_text())["results"] for path in tasks.rglob("results_*.json")]
    return [found["choices"]["acc,none"] for found in told if "choices" in found] == [1.0]


def loads(python: Path, url: str, folder: Path) -> list[str]:
    """Runs guidellm's load against each endpoint; where requests failed, or were not counted as we count them."""
    program = python.parents[1] / "guidellm" / "bin" / "guidellm"
    if not program.exists():
        print("SKIPPED: guidellm is not installed")
        return []
    prompts, report = folder / "prompts.jsonl", folder / "guidellm.json"
    prompts.write_text("".join(json.dumps({"prompt": f"{who}:", "output_tokens_count": 8}) + "\n" for who in SPEAKERS))
    failed = []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        command = [str(program), "run", "--disable-console", "--backend",
                   f"kind=openai_http,target={url},model=demo,request_format={path}",
                   "--data", f"kind=json_file,path={prompts}", "--profile", "kind=concurrent,streams=2",
                   "--constraint", f"kind=max_requests,count={len(SPEAKERS)}",
                   "--output", f"kind=json,path={report}"]  # fmt: skip
        report.unlink(missing_ok=True)
        if not subprocess.run(command, env=OFFLINE, cwd=folder).returncode:
            [told] = json.loads(report.read_text())["benchmarks"]
            done = told["requests"]["successful"] or []
            if len(done) == len(SPEAKERS) and {each["output_tokens"] for each in done} == {8}:
                continue
        failed.append(f"guidellm {path}")
    return failed


def commands(python: Path, url: str, tasks: Path) -> dict[str, list[str]]:
    """The clients of the door by name."""
    return {
        "litellm": [str(python), str(FOLDER / "litellm_client.py"), url],
        "lm-eval local-completions": harness(
            python,
            url,
            tasks,
            "local-completions",
            "completions",
            ",tokenizer_backend=remote",
            "--tasks",
            "choices,talk",
        ),
        "lm-eval local-chat-completions": harness(
            python,
            url,
            tasks,
            "local-chat-completions",
            "chat/completions",
            "",
            "--tasks",
            "talk",
            "--apply_chat_template",
        ),
    }


if __name__ == "__main__":
    main()
