"""`tandem chat` as a conversation, on a terminal of its own: what is typed, stopped, left out, saved."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.fakes import ServersThread
from tests.client.test_chat import prompt_of
from tests.client.test_cli import TANDEM, environment

ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]|\x1b[=>78]|\x1b\][^\x07]*\x07")
ENTER, NEW_LINE, INTERRUPT, END = "\r", "\x1b\r", "\x03", "\x04"


class Terminal:
    """A terminal with `tandem chat` on it."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self._shown = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        """All that was shown, without what moves the cursor."""
        return ESCAPES.sub("", self._shown.decode(errors="replace")).replace("\r", "")

    def wait_for(self, words: str) -> None:
        """Waits until these words are shown behind those that were waited for before."""
        until = time.monotonic() + 60
        while (place := self.shown.find(words, self._seen)) < 0:
            ready, _, _ = select.select([self._controller], [], [], until - time.monotonic())
            assert ready, f"{words!r} did not come: {self.shown[self._seen :]!r}"
            try:
                self._shown += os.read(self._controller, 65536)
            except OSError:
                raise AssertionError(f"it ended before {words!r}: {self.shown[self._seen :]!r}") from None
        self._seen = place + len(words)

    def type(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    def say(self, line: str, answer: str) -> None:
        """Types a line at the prompt, and waits for what it leads to."""
        self.wait_for("> ")
        self.type(line + ENTER)
        self.wait_for(answer)

    def leave(self) -> int:
        self.wait_for("> ")
        self.type(END)
        return self.process.wait(60)


# Ctrl-C is a signal only on a terminal that controls the process.
TAKE_TERMINAL = (
    # SIGHUP is ignored by all that `nohup` starts, this suite, too.
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@contextmanager
def chat(servers: ServersThread, folder: Path, *flags: str) -> Iterator[Terminal]:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *TANDEM, "chat", "--seed", "0", *flags],
        env=environment(servers, TERM="xterm-256color", PROMPT_TOOLKIT_NO_CPR="1", XDG_STATE_HOME=str(folder)),
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def prompts(servers: ServersThread) -> list[list[int]]:
    return [list(seen.request.prompt_ids) for seen in servers.worker.seen]


def test_a_banner_says_what_is_served_and_how_to_leave(servers: ServersThread, tmp_path: Path) -> None:
    with chat(servers, tmp_path) as terminal:
        terminal.wait_for("/help lists commands, Ctrl-D leaves")
        assert terminal.leave() == 0


def test_several_lines_are_one_message_typed_or_pasted(servers: ServersThread, tmp_path: Path) -> None:
    with chat(servers, tmp_path, "--max-tokens", "6") as terminal:
        terminal.say(f"one{NEW_LINE}two", TEXT[:6])
        terminal.say("\x1b[200~three\nfour\x1b[201~", TEXT[:6])
        assert terminal.leave() == 0
    first = prompt_of(("user", "one\ntwo"))
    assert prompts(servers)[0] == first
    assert prompts(servers)[1] == prompt_of(("user", "one\ntwo"), ("assistant", TEXT[:6]), ("user", "three\nfour"))


def test_a_stopped_answer_stays_and_the_talk_goes_on(servers: ServersThread, tmp_path: Path) -> None:
    servers.worker.script = [*ids_of_text("An answer that does not end"), EOS]
    servers.worker.pause_at = len("An answer that does not end")
    with chat(servers, tmp_path) as terminal:
        terminal.say("one", "not end")
        terminal.type(INTERRUPT)
        terminal.wait_for("stopped")
        servers.worker.pause_at = None
        servers.worker.script = [*ids_of_text("Yes"), EOS]
        terminal.say("two", "Yes")
        assert terminal.leave() == 0
    together = prompt_of(("user", "one"), ("assistant", "An answer that does not end"), ("user", "two"))
    assert prompts(servers)[1] == together
    servers.wait(servers.worker.seen[0].cancelled)


def test_what_is_typed_while_it_answers_is_shown_at_the_next_prompt_alone(
    servers: ServersThread, tmp_path: Path
) -> None:
    servers.worker.script = [*ids_of_text("An answer"), EOS]
    servers.worker.pause_at = len("An answer")
    with chat(servers, tmp_path) as terminal:
        terminal.say("one", "An answer")
        terminal.type(f"ahead{ENTER}")
        terminal.type(INTERRUPT)
        terminal.wait_for("stopped")
        assert "ahead" not in terminal.shown
        assert terminal.leave() == 0


def test_an_interrupt_at_the_prompt_drops_the_line(servers: ServersThread, tmp_path: Path) -> None:
    with chat(servers, tmp_path, "--max-tokens", "3") as terminal:
        terminal.wait_for("> ")
        terminal.type("never sent" + INTERRUPT)
        terminal.wait_for("Ctrl-D leaves")
        terminal.say("one", TEXT[:3])
        assert terminal.leave() == 0
    assert prompts(servers) == [prompt_of(("user", "one"))]


def test_what_was_typed_is_remembered_in_a_file_of_its_owner(servers: ServersThread, tmp_path: Path) -> None:
    with chat(servers, tmp_path, "--max-tokens", "3") as terminal:
        terminal.say("first of all", TEXT[:3])
        assert terminal.leave() == 0
    kept = tmp_path / "tandem" / "chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600
    with chat(servers, tmp_path, "--max-tokens", "3") as terminal:
        terminal.say("\x1b[A", TEXT[:3])  # the arrow up
        assert terminal.leave() == 0
    assert prompts(servers) == [prompt_of(("user", "first of all"))] * 2
    before = kept.read_bytes()
    with chat(servers, tmp_path, "--max-tokens", "3", "--history", "") as terminal:
        terminal.say("a secret", TEXT[:3])
        assert terminal.leave() == 0
    assert kept.read_bytes() == before


def test_commands(servers: ServersThread, tmp_path: Path) -> None:
    file, tools = tmp_path / "talk.json", tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "weather"}}]))
    with chat(servers, tmp_path, "--max-tokens", "3") as terminal:
        terminal.say("/help", "/retry")
        terminal.say("/nothing", "there is no command /nothing")
        terminal.say("/continue", "there is no answer to continue")
        terminal.say("/system Be brief", "system: Be brief")
        terminal.say(f"/tools {tools}", "tools: weather")
        terminal.say("/params temperature=0.5 max_tokens=4", "max_tokens=4 seed=0 temperature=0.5")
        terminal.say("/params temperature=x", "sampling.temperature")
        terminal.say("/params mood=1", "unknown option: mood")
        terminal.say("//one", TEXT[:4])
        terminal.say("/retry", TEXT[:4])
        terminal.say("/continue", TEXT[:4])
        terminal.say("/tokens", "tokens: ")
        terminal.say("/tokens ab", "2: ")
        terminal.say(f"/save {file}", "3 messages are in")
        terminal.say("/clear", "the conversation is empty")
        terminal.say("/system -", "no system message")
        terminal.say(f"/load {tmp_path}/none", "No such file")
        terminal.say(f"/load {tools}", "has no list of messages")
        terminal.say(f"/load {file}", "3 messages")
        terminal.say("two", TEXT[:4])
        terminal.wait_for("> ")
        terminal.type("/exit" + ENTER)
        assert terminal.process.wait(60) == 0
    answer = {"role": "assistant", "content": TEXT[:4] * 2}
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "/one"}, answer]
    assert json.loads(file.read_text())["messages"] == messages
    first = prompt_of(("system", "Be brief"), ("user", "/one"))
    together = prompt_of(*((each["role"], each["content"]) for each in messages), ("user", "two"))
    begun = prompt_of(("system", "Be brief"), ("user", "/one"), ("assistant", TEXT[:4]))[: -2 - len("assistant\n")]
    assert prompts(servers) == [first, first, begun, together]
    assert "weather" in servers.tokenizer.chats[-1].tools[0]
    assert servers.worker.seen[0].request.sampling.temperature == 0.5


def test_a_full_context_leaves_out_the_oldest_turns_and_says_so(servers: ServersThread, tmp_path: Path) -> None:
    servers.worker.context = 110
    with chat(servers, tmp_path, "--max-tokens", "6", "--system", "Be brief") as terminal:
        terminal.say("one " * 6, TEXT[:6])
        terminal.say("two " * 6, "the oldest turn is not shown to the model any more")
        terminal.wait_for(TEXT[:6])
        assert terminal.leave() == 0
    assert prompts(servers)[1] == prompt_of(("system", "Be brief"), ("user", "two " * 6))


def test_an_error_is_told_and_the_message_can_be_sent_again(servers: ServersThread, tmp_path: Path) -> None:
    with chat(servers, tmp_path, "--max-tokens", "3") as terminal:
        terminal.wait_for("> ")
        servers.tokenizer.has_chat_template = False
        terminal.type("one" + ENTER)
        terminal.wait_for("error: ")
        servers.tokenizer.has_chat_template = True
        terminal.say("/retry", TEXT[:3])
        assert terminal.leave() == 0
    assert prompts(servers) == [prompt_of(("user", "one"))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_while_it_answers(servers: ServersThread, tmp_path: Path, number: int) -> None:
    servers.worker.pause_at = 4
    with chat(servers, tmp_path) as terminal:
        terminal.say("one", TEXT[:4])
        terminal.process.send_signal(number)
        assert terminal.process.wait(60) == 128 + number


def test_what_a_model_writes_cannot_move_the_cursor(servers: ServersThread, tmp_path: Path) -> None:
    servers.worker.script = [*ids_of_text("plain \x1b[2J\x07text\n"), EOS]
    with chat(servers, tmp_path) as terminal:
        terminal.say("one", "plain [2Jtext")
        assert terminal.leave() == 0
