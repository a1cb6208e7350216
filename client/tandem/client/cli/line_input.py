"""Lines that a person types: with history and editing on a terminal, else as they come."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from tandem.client.cli.terminal import errors, is_terminal

PROMPT = "> "


def default_history() -> Path:
    """Returns where lines are kept: below XDG_STATE_HOME, else ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tandem" / "chat_history"


async def typed_lines(history: Path | None, words: Sequence[str]) -> AsyncGenerator[str, None]:
    """Yields what is typed until the end of the input; Ctrl-C drops what is in the line. `history` is the file that
    remembers lines, `words` are completed at the beginning of a line. The event loop goes on meanwhile."""
    if not _edits():
        while (line := await _plain_line()) is not None:
            yield line
        return
    # Imported where it is used: it takes a tenth of a second.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    remembered = history is not None and _can_remember(history)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)) if remembered else InMemoryHistory(),
        key_bindings=keys,
        multiline=True,  # pasted lines are one message
        prompt_continuation="  ",
        completer=WordCompleter([*words], sentence=True),
        complete_while_typing=False,
        output=create_output(stdout=sys.stderr),
    )
    while True:
        try:
            # Signals are ours (`interruptible`): it would take the handler away.
            yield await session.prompt_async([("bold fg:ansigreen", PROMPT)], handle_sigint=False)
        except KeyboardInterrupt:
            errors.print(Text("Ctrl-D leaves", style="dim"))
        except EOFError:
            return


def _edits() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stderr) and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def without_echo() -> Iterator[None]:
    """Keeps what is typed out of what is shown; the next prompt shows it."""
    before = termios.tcgetattr(0) if _edits() else None
    if before is not None:
        changed = before.copy()
        changed[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, changed)
    try:
        yield
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSANOW, before)


def _can_remember(history: Path) -> bool:
    """Makes the file, for its owner alone; says why where that fails."""
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
    except OSError as error:
        errors.print(Text(f"lines are not remembered: {history}: {error.strerror}", style="dim"))
        return False
    return True


async def _plain_line() -> str | None:
    """Returns the next line, or None at the end."""
    errors.print(Text(PROMPT, style="bold green"), end="")
    loop = asyncio.get_running_loop()
    data = b""
    while not data.endswith(b"\n"):
        ready = asyncio.Event()
        loop.add_reader(0, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        try:
            part = os.read(0, 1 << 16)
        except OSError:  # the terminal is gone
            part = b""
        if not part:
            break
        data += part
    if not data:
        errors.print()
        return None
    return data.decode(errors="replace").rstrip("\n")
