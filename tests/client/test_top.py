"""`tandem top`: the picture says what the worker said."""

from __future__ import annotations

from rich.console import Console

from tandem.client.cli.top import WorkerView, picture
from tandem.inference.v1 import admin_pb2 as pb

SERVER = pb.GetServerResponse(
    state=pb.SERVER_STATE_SERVING, device="cpu", max_running_requests=8, max_waiting_requests=100
)


def load(**fields: int) -> pb.GetLoadResponse:
    return pb.GetLoadResponse(pages_total=40, **fields)


def text_of(view: WorkerView) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(picture(view))
    return capture.get()


def test_it_shows_what_runs_waits_and_fills_the_pages():
    view = WorkerView("host:1")
    view.look(
        SERVER,
        load(
            running_requests=4,
            waiting_requests=50,
            waiting_tokens=777,
            pages_referenced=10,
            pages_cached=20,
            pages_free=10,
            prompt_tokens=200,
            cached_prompt_tokens=50,
            preemptions=3,
        ),
        now=1.0,
    )
    text = text_of(view)
    for words in ("serving", "4 of 8", "50, 777 tokens", "10 used, 20 cached, 10 free", "25.0 %", "3 preemptions"):
        assert words in text
    running = next(line for line in text.splitlines() if "running" in line)
    assert running.count("█") == running.count("·") == 24


def test_rates_are_between_two_looks_and_a_restarted_engine_gives_none():
    view = WorkerView("host:1")
    view.look(SERVER, load(steps=10, output_tokens=100), now=1.0)
    view.look(SERVER, load(steps=20, output_tokens=400), now=3.0)
    assert list(view.output_rates) == [150.0]
    assert "150 tokens/s" in text_of(view)
    view.look(SERVER, load(steps=1, output_tokens=1), now=4.0)
    assert list(view.output_rates) == [150.0]


def test_a_little_is_never_drawn_as_nothing_and_too_much_stays_in_the_bar():
    view = WorkerView("host:1")
    view.look(SERVER, load(running_requests=99, waiting_requests=1, pages_referenced=40, pages_cached=40), now=1.0)
    lines = text_of(view).splitlines()
    assert next(line for line in lines if "waiting" in line).count("█") == 1
    assert next(line for line in lines if "running" in line).count("█") == 48


def test_a_worker_that_does_not_answer_is_shown_with_its_error():
    view = WorkerView("host:1")
    assert "waiting for an answer" in text_of(view)
    view.error = "connection refused"
    assert "connection refused" in text_of(view)


def test_an_error_is_told_to_its_end_on_a_narrow_terminal():
    view = WorkerView("host:1")
    view.error = "worker: UNAVAILABLE: failed to connect to all addresses; last error: Connection refused"
    console = Console(width=40, color_system=None, soft_wrap=True)  # as the command's own
    with console.capture() as capture:
        console.print(picture(view))
    assert "Connection" in capture.get() and "refused" in capture.get()
