"""`tandem bench`: what is drawn, when it is asked, and what is made of the times."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tandem.client.bench.lengths import Lengths
from tandem.client.bench.load import Load, Record, limited
from tandem.client.bench.report import QUANTILES, TIMES, Run
from tandem.client.bench.targets import Answered, Question, Refused, openai_server
from tandem.client.bench.workload import Conversation, MadeUp, Turn, from_file
from tandem.client.cli.app import make_app


def test_lengths_have_the_distribution_that_was_asked_for():
    chance = random.Random(1)
    drawn = {text: [Lengths.parse(text).draw(chance) for _ in range(4000)] for text in FORMS}
    assert set(drawn["7"]) == {7}
    assert set(drawn["3-6"]) == {3, 4, 5, 6}
    assert abs(statistics.mean(drawn["normal:200,20"]) - 200) < 2
    assert abs(statistics.stdev(drawn["normal:200,20"]) - 20) < 2
    assert 95 < statistics.median(drawn["lognormal:100,1"]) < 105
    assert 140 < statistics.mean(drawn["lognormal:100,1"]) < 190, "the mean is exp(sigma**2 / 2) above the median"
    for text in ("", "0", "-3", "9-3", "normal:5", "gamma:1,2", "1.5", "lognormal:0.5,1"):
        with pytest.raises(ValueError, match="LOW-HIGH"):
            Lengths.parse(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rate=1", "--concurrency=1"], "not both"),
        (["--slo=first=1"], "--slo first=1: give ttft, gap, tpot, e2e"),
        (["--slo=ttft=nan"], "--slo ttft=nan"),
        (["--prompt-tokens=no"], "--prompt-tokens: 'no' is not a number"),
        (["--prompts=/nowhere"], "--prompts /nowhere: No such file"),
        (["--compare=/dev/null"], "it is not a result"),
        (["--json=/nowhere/x.json"], "--json /nowhere/x.json: No such file or directory"),
        (["--json=/"], "--json /: Is a directory"),
        (["--plot=/nowhere/x.png"], "--plot /nowhere/x.png: No such file or directory"),
    ],
)
def test_wrong_usage_is_said_before_anybody_is_asked(flags: list[str], words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(
        make_app(), ["bench", "--tokenizer-address=localhost:1", "--worker-address=localhost:1", *flags]
    )
    assert done.exit_code in (1, 2) and words in done.output


NO_SERVICES = {"TANDEM_TOKENIZER_ADDRESS": "", "TANDEM_WORKER_ADDRESS": ""}
FORMS = ("7", "3-6", "normal:200,20", "lognormal:100,1")


def made_up(seed: int) -> list[Conversation]:
    one = Lengths.parse
    workload = MadeUp(one("20-40"), one("5-9"), one("1-3"), prefixes=2, prefix_tokens=100, tokens_per_word=2, seed=seed)
    return list(itertools.islice(workload, 60))


def test_a_made_up_load_is_the_same_by_its_seed_and_shares_its_prefixes_alone():
    conversations = made_up(3)
    assert conversations == made_up(3) != made_up(4)
    assert {len(each.turns) for each in conversations} == {1, 2, 3}
    first = [each.turns[0].text for each in conversations]
    assert len({text.split("\n\n")[0] for text in first}) == 2
    assert len({text.split("\n\n")[1][:40] for text in first}) == len(first)
    assert all("\n\n" not in turn.text for each in conversations for turn in each.turns[1:])
    assert all(10 <= len(turn.text.split()) <= 20 for each in conversations for turn in each.turns[1:])
    assert all(5 <= turn.max_tokens <= 9 for each in conversations for turn in each.turns)


def test_prompts_of_a_file_and_what_is_wrong_in_one(tmp_path: Path):
    lines, plain = tmp_path / "prompts.jsonl", tmp_path / "prompts.txt"
    lines.write_text('{"prompt": "one", "max_tokens": 3}\n\n{"prompt": ["two", "and more"]}\n')
    plain.write_text("\ufeffone\n{two}\n")  # as some editors mark a file of UTF-8
    turns = [each.turns for each in from_file(lines, Lengths.parse("9"), 0)]
    assert turns == [[Turn("one", 3)], [Turn("two", 9), Turn("and more", 9)]]
    assert [each.turns[0].text for each in from_file(plain, Lengths.parse("9"), 0)] == ["one", "{two}"]
    wrong = {
        "{": "line 1 is not JSON",
        "[]": "line 1 is not an object",
        "": "no prompt",
        '{"prompt": []}': "line 1: prompt",
        '{"prompt": "a", "max_tokens": 0}': "max_tokens",
    }
    for text, words in wrong.items():
        lines.write_text(text)
        with pytest.raises(ValueError, match=words):
            from_file(lines, Lengths.parse("9"), 0)


class Clocked:
    """Answers when it is told to; refuses what asks for 13 tokens."""

    name = "clocked"

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.most = 0
        self.under_way = 0
        self.go = asyncio.Event()

    async def ask(self, question: Question, arrived: Callable[[], None]) -> Answered:
        self.asked.append(question)
        if question.max_tokens == 13:
            raise Refused("RESOURCE_EXHAUSTED")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        for _ in range(question.max_tokens):
            await asyncio.sleep(0)
            arrived()
        self.under_way -= 1
        return Answered("!", len(question.text), 0, question.max_tokens)


async def test_an_open_load_asks_whether_or_not_others_are_answered_and_counts_from_the_moment_that_was_due():
    target = Clocked()
    load = Load(target)
    conversations = [Conversation([Turn("a", 2)], number) for number in range(50)]
    running = asyncio.create_task(load.run_open(conversations, rate=5000, seed=1))
    while len(target.asked) < 50:
        assert not running.done()
        await asyncio.sleep(0)
    target.go.set()
    await running
    assert target.most == 50
    dues = [record.due for record in load.records]
    chance = random.Random(1)
    expected = [0.0, *itertools.accumulate(chance.expovariate(5000) for _ in range(49))]
    assert sorted(dues) == expected
    assert all(record.ttft is not None and record.ttft >= 0 and len(record.gaps) == 1 for record in load.records)


async def test_a_closed_load_keeps_its_number_and_a_conversation_sends_all_that_was_said():
    target = Clocked()
    target.go.set()
    load = Load(target)
    talks = [Conversation([Turn("a", 2), Turn("b", 1)], 7)] * 9 + [Conversation([Turn("c", 13), Turn("d", 1)], 7)]
    await load.run_closed(limited(talks, 10, None), 3)
    assert target.most == 3
    assert [question.text for question in target.asked].count("a!b") == 9
    assert "c!d" not in {question.text for question in target.asked}, "a talk that was refused goes no further"
    assert [record.error for record in load.records].count("RESOURCE_EXHAUSTED") == 1
    assert len(list(limited(iter(talks), 4, None))) == 4
    assert len(list(limited(iter(talks), 4, 1e-9))) <= 1


GOOD = 'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
UNREADABLE = {
    'data: {"choices":[{"te': "an event that cannot be read",
    'data: {"choices": null}\n\n': "an event that cannot be read",
    "data: []\n\n": "an event that cannot be read",
    'data: {"choices": [7]}\n\n': "an event that cannot be read",
    'data: {"choices": [{"text": {"a": 1}}]}\n\n': "an event that cannot be read",
    'data: {"usage": {"prompt_tokens": 3}}\n\n': "a usage that cannot be read",
    'data: {"usage": {"prompt_tokens": "x", "completion_tokens": 1}}\n\n': "a usage that cannot be read",
    'data: {"usage": [1]}\n\n': "a usage that cannot be read",
    "": "no usage at the end of the stream",
}


@contextmanager
def saying(*bodies: str, models: str = "") -> Iterator[str]:
    """The address of a server that says these things, each to one request, and then ends the connection."""
    left = iter(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.say(next(left))

        def do_GET(self) -> None:
            self.say(models)

        def say(self, body: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_what_a_server_says_wrongly_is_counted_against_it_and_ends_nothing():
    with saying(*(body for wrong in UNREADABLE for body in (GOOD, wrong)), GOOD) as url:
        async with openai_server(url, "m", "", 60, chat=False, fixed={}) as target:
            load = Load(target)
            talks = [Conversation([Turn("a", 2)], number) for number in range(2 * len(UNREADABLE) + 1)]
            await load.run_closed(talks, 1)
    assert [record.error for record in load.records[1::2]] == list(UNREADABLE.values())
    assert {(record.error, record.output_tokens) for record in load.records[::2]} == {("", 1)}


@pytest.mark.parametrize("models", ["[]", "7", '{"data": null}', '{"data": [7]}', "", '{"data": []}'])
async def test_models_that_are_not_listed_are_told(models: str):
    with saying(models=models) as url, pytest.raises(Refused, match="does not list its models"):
        async with openai_server(url, "", "", 60, chat=False, fixed={}):
            pass


async def test_an_address_that_is_none_is_told():
    with pytest.raises(Refused, match="InvalidURL"):
        async with openai_server("http://localhost:x", "", "", 60, chat=False, fixed={}):
            pass


def test_a_look_whether_a_result_can_be_kept_leaves_files_as_they_were(tmp_path: Path):
    kept, new = tmp_path / "kept.json", tmp_path / "new.json"
    kept.write_text("before")
    for path in (kept, new):
        done = CliRunner().invoke(make_app(), ["bench", f"--json={path}", "--slo=ttft=1"], env=NO_SERVICES)
        assert done.exit_code == 2
    assert (kept.read_text(), new.exists()) == ("before", False)


def test_a_result_is_shown_although_it_cannot_be_kept(tmp_path: Path):
    Run("x", "2026-01-01T00:00:00+00:00", {}, {}, 1.0, [Record(due=0.0, end=1.0)]).save(tmp_path / "run.json")
    done = CliRunner().invoke(make_app(), ["bench", f"--from={tmp_path / 'run.json'}", "--json=/dev/full"])
    assert done.exit_code == 1
    assert "1 of 1 answered" in done.output


def test_a_result_has_the_percentiles_of_what_was_answered_and_is_read_as_it_was_kept(tmp_path: Path):
    chance = np.random.default_rng(0)
    records = [
        Record(
            due=due, end=due + 3 * first, ttft=first, gaps=[first], prompt_tokens=4, cached_tokens=1, output_tokens=2
        )
        for due, first in zip(range(101), chance.gamma(2, 1, 101), strict=True)
    ]
    records.append(Record(due=1.0, end=1.5, error="UNAVAILABLE"))
    run = Run("here", "2026-01-01T00:00:00+00:00", {"rate": 2.0}, {"ttft": 1.0, "gap": 2.0}, 10.0, records)
    summary = run.summary()
    for name in TIMES:
        for label, share in QUANTILES.items():
            assert summary[name][label] == pytest.approx(np.quantile(run.times(name), share))
    assert len(run.times("e2e")) == summary["answered"] == 101 and summary["errors"] == {"UNAVAILABLE": 1}
    within = sum(record.ttft is not None and record.ttft <= 1 for record in records)
    assert summary["good_share"] == within / 102 and summary["goodput"] == within / 10
    assert (summary["cached_share"], summary["output_tokens_per_second"]) == (0.25, 20.2)

    run.save(tmp_path / "run.json")
    again = Run.load(tmp_path / "run.json")
    assert again.summary()["ttft"] == pytest.approx(summary["ttft"], abs=1e-6)
    assert (again.target, again.slo, len(again.records)) == (run.target, run.slo, 102)
    empty = Run("here", "", {}, {}, 0.0, [])
    empty.save(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text())["summary"]["ttft"]["p50"] is None, "NaN is not JSON"
    for text in ("{", "[]", '{"format": 99}', '{"format": 1}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match="it"):
            Run.load(tmp_path / "run.json")


def test_two_runs_are_judged_by_one_objective(tmp_path: Path):
    for name, ttft, slo in (("old", 0.4, 1.0), ("new", 0.2, 0.3)):
        records = [Record(due=0.0, end=1.0, ttft=ttft, output_tokens=1)]
        Run("x", "2026-01-01T00:00:00+00:00", {}, {"ttft": slo}, 1.0, records).save(tmp_path / f"{name}.json")
    kept, before = tmp_path / "new.json", tmp_path / "old.json"
    done = CliRunner().invoke(make_app(), ["bench", f"--from={kept}", f"--compare={before}"])
    (line,) = [line.split() for line in done.output.splitlines() if line.startswith("within ttft 0.3 s, %")]
    assert line[5:7] == ["100.0", "0.0"]
