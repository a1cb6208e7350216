"""Starts the demo model behind a door, and runs each client's script in the environment that is given."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.integration.smg_process import free_port

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "models" / "demo"
START_SECONDS = 300.0

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
DATA = """{"text": "ROMEO:\\nGood", "a": " night", "b": " zzxq vvkj", "right": 0}
{"text": "JULIET:\\nGood", "a": " night", "b": " qqzx", "right": 0}
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
        failed = [name for name, command in commands(python, url).items() if subprocess.run(command).returncode]
    finally:
        services.terminate()
        services.wait(60)
    print(f"failed: {', '.join(failed)}" if failed else "all clients passed")
    sys.exit(bool(failed))


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


def commands(python: Path, url: str) -> dict[str, list[str]]:
    """The clients by name."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-conformance-"))
    (folder / "data.jsonl").write_text(DATA)
    tasks = {
        "choices": ("multiple_choice", 'doc_to_choice: ["{{a}}", "{{b}}"]\ndoc_to_target: right', "acc"),
        "talk": ("generate_until", 'doc_to_target: "{{a}}"\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 8}',
                 "exact_match"),
    }  # fmt: skip
    for name, (kind, rest, metric) in tasks.items():
        text = TASK.format(name=name, data=folder / "data.jsonl", kind=kind, rest=rest, metric=metric)
        (folder / f"{name}.yaml").write_text(text)

    def harness(model: str, path: str, more: str, *rest: str) -> list[str]:
        arguments = f"model=demo,base_url={url}/v1/{path},num_concurrent=2,max_retries=1{more}"
        return [str(python.with_name("lm_eval")), "run", "--model", model, "--model_args", arguments,
                "--include_path", str(folder), *rest]  # fmt: skip

    return {
        "litellm": [str(python), str(HERE / "litellm_client.py"), url],
        "lm-eval local-completions": harness(
            "local-completions", "completions", ",tokenizer_backend=remote", "--tasks", "choices,talk"
        ),
        "lm-eval local-chat-completions": harness(
            "local-chat-completions", "chat/completions", "", "--tasks", "talk", "--apply_chat_template"
        ),
    }


if __name__ == "__main__":
    main()
