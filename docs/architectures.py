"""Generates the table of docs/models.md that says from which files each architecture loads, from the reader's tables.

python docs/architectures.py           write it; `make protos` does
python docs/architectures.py --check   exit 1 if it is not what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tandem.worker.checkpoints.gguf_architectures import ARCHITECTURES as GGUF
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES, Architecture
from tandem.worker.convert.gguf import CONVERTED as TO_GGUF
from tandem.worker.convert.hugging_face import CONVERTED as TO_HUGGING_FACE

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- made by docs/architectures.py -->\n", "<!-- end of what is made -->\n"
HEAD = (
    "| architecture | `config.json` says | GGUF says | Meta's layout | converts to | on a GPU |\n" + "|---" * 6 + "|\n"
)
META = ("llama", "mistral")
# What GGUF files say of models that are another one with other sizes.
SAME = {"mistral": "llama", "ministral": "", "mixtral": "llama"}


def rows() -> Iterator[str]:
    """The table's rows, in the order of the reader's table."""
    for each in ARCHITECTURES.values():
        written = [
            name for name, served in (("Hugging Face", TO_HUGGING_FACE), ("GGUF", TO_GGUF)) if each.name in served
        ]
        written += ["Meta"] if each.name == "llama" else []
        columns = (
            each.name,
            f"`{each.class_name}`",
            ", ".join(f"`{name}`" for name in gguf_names(each)) or "no",
            "yes" if each.name in META else "no",
            ", ".join(written) or "nothing",
            "refused" if each.hybrid else "yes",
        )
        yield f"| {' | '.join(columns)} |\n"


def gguf_names(architecture: Architecture) -> list[str]:
    """What `general.architecture` says in files of this architecture."""
    found = [name for name, each in GGUF.items() if architecture.name in (each.name, each.windowed)]
    return found or [name for name in (SAME.get(architecture.name),) if name]


def page() -> str:
    """The text of docs/models.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + HEAD + "".join(rows()) + END + after


def main(arguments: list[str]) -> int:
    """Writes or checks the page."""
    text = page()
    if arguments == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE} is not what the code says: python docs/architectures.py")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
