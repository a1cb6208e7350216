"""`tandem generate`, `tokenize`, `detokenize` and `status`: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests import prepared
from tests.client.byte_vocabulary import BOS, EOS, TEXT, ids_of_text
from tests.client.fakes import ServersThread

# sys.executable is written out, so that nothing depends on PATH.
TANDEM = [sys.executable, "-m", "tandem.client"]


def environment(servers: ServersThread | None, **more: str) -> dict[str, str]:
    addresses = {}
    if servers is not None:
        addresses = {
            "TANDEM_TOKENIZER_ADDRESS": servers.tokenizer_address,
            "TANDEM_WORKER_ADDRESS": servers.worker_address,
        }
    return {**os.environ, "COLUMNS": "200", **addresses, **more}


def tandem(servers: ServersThread | None, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command, and what it is given as standard input."""
    return prepared.run("tandem.client.cli", *arguments, environment=environment(servers), stdin=given)


def test_generate_prints_exactly_the_completion(servers: ServersThread) -> None:
    done = tandem(servers, "generate", "Hello", "--seed", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, TEXT, "")


def test_generate_reads_a_prompt_from_a_pipe_and_shows_statistics_apart(servers: ServersThread) -> None:
    for arguments in (["-"], []):
        done = subprocess.run(
            [*TANDEM, "generate", *arguments, "--stats", "-n", "5", "--seed", "0"],
            env=environment(servers),
            input="Hello\nwörld",
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, TEXT[:5])
        assert "finish reason  max_tokens" in done.stderr and "ms a token" in done.stderr
        assert "prompt  13 tokens" in done.stderr
    assert list(servers.worker.seen[0].request.prompt_ids) == [BOS, *ids_of_text("Hello\nwörld")]


def test_the_prompts_of_a_file_are_answered_a_line_each(servers: ServersThread, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    asked: list[dict[str, Any]] = [
        {"prompt": "a", "max_tokens": 2}, {"prompt": "<|control|>", "special_tokens": "reject"}, {"prompt": "c"}
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, asked)))
    done = tandem(servers, "generate", "--prompts", str(file), "-n", "4", "--seed", "0", "--pieces")
    assert (done.returncode, done.stderr) == (1, "")
    ends = {end["index"]: end for end in map(json.loads, done.stdout.splitlines())}
    assert "control token" in ends[1]["error"]
    assert (ends[0]["text"], ends[2]["text"]) == (TEXT[:2], TEXT[:4])
    assert ("".join(ends[2]["pieces"]), bytes.fromhex("".join(ends[2]["pieces_hex"]))) == (TEXT[:4], TEXT[:4].encode())
    plain = tmp_path / "prompts.txt"
    plain.write_text("a\nb\n")
    done = tandem(servers, "generate", "--prompts", str(plain), "-n", "2", "--concurrency", "1")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    file.write_text('{"prompt": "a", "maximum": 3}')
    done = tandem(servers, "generate", "--prompts", str(file))
    assert done.returncode == 1 and "line 1 has an unknown option: maximum" in done.stderr


def test_every_flag_reaches_the_worker(servers: ServersThread) -> None:
    flags = "--max-tokens 9 --min-tokens 2 --temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --seed 7"
    flags += " --repetition-penalty 1.5 --repetition-window 8 --stop-id 4 --stop-id 5"
    flags += " --ignore-eos --include-stop --stop zzz --stop a\\nb"
    done = tandem(servers, "generate", "Hi", *flags.split())
    assert done.returncode == 0, done.stderr
    request = servers.worker.seen[0].request
    sampling, stopping = request.sampling, request.stopping
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.25, 0.125)
    assert (sampling.repetition_penalty, sampling.repetition_window, sampling.seed) == (1.5, 8, 7)
    assert (stopping.max_tokens, stopping.min_tokens, list(stopping.stop_token_ids)) == (9, 2, [4, 5])
    assert stopping.ignore_eos
    assert stopping.include_stop
    assert list(servers.tokenizer.opened[0].stop_strings) == ["zzz", "a\nb"]


def test_flags_for_several_answers_guides_and_guesses_reach_the_worker(servers: ServersThread, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    flags = "--n 2 --best-of 4 --length-penalty 0.5 --stop-sequence 5,6 --stop-sequence 7 --draft-tokens 3"
    tandem(servers, "generate", "Hi", *flags.split(), "--prompt-lookup", "2", "--json-schema", str(schema))
    request = servers.worker.seen[0].request
    assert (request.n, request.best_of, request.length_penalty) == (2, 4, 0.5)
    assert [list(sequence.ids) for sequence in request.stopping.stop_sequences] == [[5, 6], [7]]
    assert (request.speculation.max_draft_tokens, request.speculation.prompt_lookup_ngram) == (3, 2)
    assert request.guided.json_schema == '{"type": "integer"}'
    for flag, value, guided in (
        ("--regex", "a+", "regex"),
        ("--choice", "yes", "choices"),
        ("--grammar", "", "grammar"),
    ):
        lark = tmp_path / "grammar.lark"
        lark.write_text('start: "x"')
        servers.worker.seen.clear()
        tandem(servers, "generate", "Hi", flag, value or str(lark))
        assert servers.worker.seen[0].request.guided.WhichOneof("guide") == guided


def test_guides_that_contradict_or_are_missing_are_one_line(servers: ServersThread, tmp_path: Path) -> None:
    two = tandem(servers, "generate", "Hi", "--regex", "a", "--choice", "b")
    assert (two.returncode, two.stderr) == (2, "error: give one of --regex, --choice\n")
    missing = tandem(servers, "generate", "Hi", "--grammar", str(tmp_path / "absent"))
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: --grammar ")
    assert "No such file" in missing.stderr
    words = tandem(servers, "generate", "Hi", "--stop-sequence", "5,x")
    assert (words.returncode, words.stderr) == (2, "error: '5,x' is not a list of token ids such as 5 or 5,6\n")


def test_generate_tells_everything_as_json(servers: ServersThread) -> None:
    done = tandem(servers, "generate", "Hello", "--json", "--logprobs", "--seed", "0", "--stop", "that")
    answer = json.loads(done.stdout)
    assert answer["text"] == TEXT[: TEXT.index("that")]
    assert (answer["finish_reason"], answer["matched_stop"], answer["seed"]) == ("stop_string", "that", 0)
    assert answer["output_ids"] == ids_of_text(answer["text"])
    assert len(answer["logprobs"]) == len(answer["output_ids"])
    assert answer["usage"]["prompt_tokens"] == 6
    assert done.stdout.count("\n") == 1


def test_several_workers_come_by_flag_or_by_commas(servers: ServersThread) -> None:
    two = ["--worker-address", servers.worker_address, "--worker-address", "127.0.0.1:1"]
    assert tandem(servers, "generate", "Hi", "--seed", "0", *two).stdout == TEXT
    both = environment(servers, TANDEM_WORKER_ADDRESS=f"{servers.worker_address},127.0.0.1:1")
    command = [*TANDEM, "generate", "Hi", "--seed", "0"]
    assert subprocess.run(command, env=both, capture_output=True, timeout=60, encoding="utf-8").stdout == TEXT


def test_errors_are_one_clear_line_and_one_for_each_field(servers: ServersThread) -> None:
    done = tandem(servers, "generate", "Hello", "--temperature", "-1", "--top-p", "7", "--special", "maybe")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "error: invalid argument:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "special_tokens",
        "sampling.temperature",
        "sampling.top_p",
    ]
    servers.worker.fail = (grpc.StatusCode.NOT_FOUND, "no model\nof that name")
    done = tandem(servers, "generate", "Hello")
    assert (done.returncode, done.stderr) == (1, "error: worker: no model of that name\n")


def test_a_server_that_is_not_there_is_one_line(servers: ServersThread) -> None:
    done = tandem(servers, "generate", "Hi", "--tokenizer-address", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: tokenizer: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "x", "--top-k", "many"],
        ["generate", "x", "--unknown"],
        ["tokenize", "x"],
        ["detokenize", "x"],
        ["detokenize"],
        ["status"],
        ["nothing"],
        ["serve", "--http-flag=--log-level=info"],
        [],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    done = tandem(None, *arguments)
    assert done.returncode == 2
    assert done.stderr or done.stdout
    assert "Traceback" not in done.stderr


def test_help_and_version() -> None:
    for arguments in (["--help"], ["run", "-h"]):
        done = tandem(None, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"tandem \S+\n", tandem(None, "--version").stdout)


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_help_names_each_flag_whole_on_a_narrow_terminal(command: str) -> None:
    narrow = {**environment(None), "COLUMNS": "80"}
    said = prepared.run("tandem.client.cli", command, "--help", environment=narrow).stdout
    assert said and not re.search(r"--[a-z-]*…", said)


def test_interrupting_generate_cancels_at_the_worker(servers: ServersThread) -> None:
    servers.worker.pause_at = 5
    process = subprocess.Popen(
        [*TANDEM, "generate", "Hi", "--seed", "0"],
        env=environment(servers),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    text = b""
    while len(text) < 5:
        text += os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert (process.returncode, text + rest, stderr) == (130, TEXT[:5].encode(), b"")
    servers.wait(servers.worker.seen[0].cancelled)


def test_a_reader_that_leaves_ends_it_quietly(servers: ServersThread) -> None:
    servers.worker.pause_at = 5
    process = subprocess.Popen(
        [*TANDEM, "generate", "Hi", "--seed", "0"],
        env=environment(servers),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    servers.set(servers.worker.go)
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 128 + signal.SIGPIPE
    process.stderr.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["top", "--looks=1"],
        ["clear-cache"],
        ["tokenize", "Hi"],
        ["show"],
        ["bench", "--conversations=1", "--prompt-tokens=8", "--output-tokens=4"],
        ["--help"],
        ["generate", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_what_nobody_reads_any_more_ends_as_by_the_signal(servers: ServersThread, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*TANDEM, *arguments], env=environment(servers), stdout=writer, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("arguments", ["generate Hi", "status", "show", "--help", "status --help", "--version"])
def test_a_full_disk_is_one_line(servers: ServersThread, arguments: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*TANDEM, *arguments.split()], env=environment(servers), stdout=full, stderr=subprocess.PIPE, timeout=120
        )
    assert (done.returncode, done.stderr) == (1, b"error: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("generate Hi >&-", 1, "error: standard output is closed\n"),
        ("status >&-", 1, "error: standard output is closed\n"),
        ("--help >&-", 1, "error: standard output is closed\n"),
        ("generate - <&-", 1, "error: standard input is closed\n"),
        ("generate <&-", 1, "error: standard input is closed\n"),
        ("chat <&-", 1, "error: standard input is closed\n"),
        ("tokenize --pairs - <&-", 1, "error: standard input is closed\n"),
        ("generate Hi --seed 0 <&-", 0, ""),
        ("generate Hi --seed 0 2>&-", 0, ""),
        ("generate Hi --seed x 2>&-", 2, ""),
        ("generate Hi --temperature -1 2>&-", 1, ""),
    ],
)
def test_standard_streams_that_are_closed_are_one_line_where_they_are_needed(
    servers: ServersThread, command: str, code: int, told: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m tandem.client {command}"],
        env=environment(servers),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (code, told)
    assert done.stdout == ("" if code else TEXT)


def test_tokenize_shows_ids_pieces_and_counts(servers: ServersThread) -> None:
    done = tandem(servers, "tokenize", "aä")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[1] for row in rows[:-1]] == [str(i) for i in [BOS, *ids_of_text("aä")]]
    assert rows[1][2] == "'a'"
    assert done.stdout.endswith("4 tokens, 2 characters, 3 bytes\n")
    assert tandem(servers, "tokenize", "aä", "--ids", "--no-add-special").stdout == "100 198 167\n"
    as_json = json.loads(tandem(servers, "tokenize", "-", "--json", given="aä").stdout)
    assert as_json["ids"] == [BOS, *ids_of_text("aä")]
    assert as_json["tokens"] == 4
    assert bytes.fromhex("".join(as_json["pieces_hex"])).decode() == "aä"


def test_tokenize_encodes_a_file_of_pairs(servers: ServersThread, tmp_path: Path) -> None:
    pairs = [["a", "bä"], ["", "c\n"], ["🚀", "d"]] * 100
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    done = tandem(servers, "tokenize", "--pairs", "-", "--ids", given=lines)
    expected = [[BOS, *ids_of_text("".join(pair))] for pair in pairs]
    assert [[int(one) for one in line.split()] for line in done.stdout.splitlines()] == expected
    (tmp_path / "pairs.jsonl").write_text(lines)
    done = tandem(servers, "tokenize", "--pairs", str(tmp_path / "pairs.jsonl"))
    assert [json.loads(line)["ids"] for line in done.stdout.splitlines()] == expected
    for broken in ('["a"]', '["a", 1]', "a b", '{"a": "b"}', ""):
        done = tandem(servers, "tokenize", "--pairs", "-", given=f'["a", "b"]\n{broken}\n')
        assert (done.returncode, done.stderr) == (1, "error: --pairs -: line 2 is no JSON list of two texts\n")
    assert tandem(servers, "tokenize", "--pairs", "none").stderr == "error: --pairs none: No such file or directory\n"
    assert tandem(servers, "tokenize", "x", "--pairs", "-").returncode == 2


def test_tokenize_obeys_the_special_token_policy(servers: ServersThread) -> None:
    assert tandem(servers, "tokenize", "<|control|>", "--special", "parse", "--ids").stdout == "0 2\n"
    done = tandem(servers, "tokenize", "<|control|>", "--special", "reject")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: tokenizer: invalid argument:",
        "  input.segments[0].text: contains a control token",
    ]


def test_a_tokenizer_is_shown_with_a_prompt_of_its_template(servers: ServersThread) -> None:
    shown = tandem(servers, "show").stdout
    assert "259 ids" in shown and "answer format" in shown and "Who is there?" in shown
    assert "  rstrip          2 <|control|>" in shown.splitlines()
    found = json.loads(tandem(servers, "show", "--json").stdout)
    assert found["special_tokens"][0]["rstrip"] is True and found["special_tokens"][0]["lstrip"] is False
    assert found["vocabulary_size"] == 259 and "Who is there?" in found["chat_prompt"]


def test_a_vocabulary_is_listed(servers: ServersThread) -> None:
    lines = tandem(servers, "vocabulary").stdout.splitlines()
    assert len(lines) == 259
    assert lines[3 + 0x61].split() == ["100", "byte", "'a'"]
    assert [lines[3 + byte].split()[2] for byte in (0, 0xE2)] == ["b'\\x00'", "b'\\xe2'"]
    listed = json.loads(tandem(servers, "vocabulary", "--json").stdout.splitlines()[3 + 0xE2])
    assert listed == {"id": 229, "type": "byte", "piece": "\ufffd", "piece_hex": "e2"}


def test_detokenize_gives_the_exact_bytes(servers: ServersThread) -> None:
    ids = [str(i) for i in ids_of_text("aä🚀")]
    assert tandem(servers, "detokenize", *ids).stdout == "aä🚀"
    command = [*TANDEM, "detokenize", str(3 + 0xE2)]
    assert subprocess.run(command, env=environment(servers), capture_output=True, timeout=60).stdout == b"\xe2"


def test_status_tells_about_both(servers: ServersThread) -> None:
    done = tandem(servers, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bytes" in done.stdout
    assert "serving" in done.stdout
    assert "counting" in done.stdout
    assert "\x1b" not in done.stdout
    tokenizer, worker = json.loads(tandem(servers, "status", "--json").stdout)
    assert tokenizer["tokenizers"][0]["vocabulary_size"] == 259
    assert (worker["server"]["state"], worker["model"]["context_length"]) == ("serving", 4096)
    assert worker["load"]["running_requests"] == 0


def test_status_of_what_is_not_there_is_an_error_beside_what_is(servers: ServersThread) -> None:
    done = tandem(servers, "status", "--worker-address", "127.0.0.1:1")
    assert done.returncode == 1
    assert "bytes" in done.stdout
    assert "127.0.0.1:1" in done.stderr


def test_a_wrong_name_is_the_only_thing_that_status_says(servers: ServersThread) -> None:
    done = tandem(servers, "status", "--worker-address", "dns:///worker")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the address 'dns:///worker' must be dns:///NAME:PORT\n"


def test_status_and_top_show_all_workers_behind_a_name(servers: ServersThread) -> None:
    port = servers.worker_address.rpartition(":")[2]
    name = f"dns:///localhost:{port}"
    _, worker = json.loads(tandem(servers, "status", "--json", "--worker-address", name).stdout)
    assert (worker["address"], worker["server"]["state"]) == (f"127.0.0.1:{port}", "serving")
    done = tandem(servers, "top", "--looks", "2", "--interval", "0.1", "--worker-address", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"127.0.0.1:{port}" in done.stdout
    answer = tandem(servers, "generate", "Hi", "--json", "--seed", "0", "--worker-address", name)
    assert json.loads(answer.stdout)["worker"] == f"127.0.0.1:{port}"


def on_a_terminal(servers: ServersThread, *arguments: str) -> tuple[int, str]:
    """Exit code and what a person would see on a terminal."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*TANDEM, *arguments],
        env=environment(servers, TERM="xterm-256color"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            data = os.read(controller, 65536)
        except OSError:  # Linux says so at the end of a terminal
            break
        if not data:
            break
        shown += data
    os.close(controller)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_last_line_break_and_no_control_characters(servers: ServersThread) -> None:
    servers.worker.script = [*ids_of_text("plain \x1b[2J\x07text\u009b1m"), EOS]
    assert on_a_terminal(servers, "generate", "Hi", "--seed", "0") == (0, "plain [2Jtext1m\n")


def test_a_terminal_gets_colours(servers: ServersThread) -> None:
    code, shown = on_a_terminal(servers, "tokenize", "abc")
    assert code == 0
    assert "\x1b[" in shown


def test_a_terminal_without_a_prompt_is_wrong_usage(servers: ServersThread) -> None:
    code, shown = on_a_terminal(servers, "generate")
    assert code == 2
    assert "give a text" in shown
