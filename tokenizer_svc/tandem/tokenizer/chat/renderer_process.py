"""The renderer's process: one JSON request a line on standard input, one answer a line on standard output.

It holds no secrets, may use so much memory and no more, and is killed by its parent when a template takes too long.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from tandem.tokenizer.chat.json_text import JsonTextError, read_question
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render


def main() -> None:
    """Serves until standard input ends. Arguments: bytes of memory, longest rendered text, niceness."""
    memory, max_characters, niceness = map(int, sys.argv[1:])
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _say({"ready": True})
    for line in sys.stdin.buffer:
        try:
            _say({"runs": render(read_question(json.loads(line)), max_characters)})
        except JsonTextError as error:
            _say({"violations": error.violations})
        except RenderError as error:
            _say({"error": str(error)[:2000]})
        except MemoryError:
            _say({"error": "the template needs too much memory"})


def _say(answer: dict[str, object]) -> None:
    text = json.dumps(answer, ensure_ascii=False)  # which is shorter, and read more quickly
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
