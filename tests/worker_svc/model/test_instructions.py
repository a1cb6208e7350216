"""Which functions of the compiled library hold instructions that not each processor with AVX-512 has.

A compiler may move an instruction in front of the `if` that asks for it, as gcc 12 did: on processors that lack it the
process is then killed by SIGILL, and no test notices it on those that have it. So this reads the library.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native.library import library

NEWER = {  # what may hold them: functions of these names, parts that the compiler has cut off (`.cold`) included
    r"v(dp|cvtn?e?2?ps\w*)bf16\w*|vcvtneo?bf16\w*": (
        r"(pack_bf16|(pairs|gated)_(bf16|amx)|wide_attention_(twos|amx)_\w+)\b"
    ),
    r"tile(load|store|zero|release)\w*|ldtilecfg|sttilecfg|tdp\w+": r"(amx_\w+|(pairs|gated)_amx)\b",
    r"vpdp(bu|ws)s?\w*": r"wide_(quantized|digits|attention)_\w+",
    r"vperm([it]2)?b": (
        r"(wide_attention_(\w+_fp8|twos_(few|more|beside|many)_\w+|amx_(few|many|look_at))|amx_(sums_of_few|int4_scores))\b"
    ),
}


@pytest.mark.skipif(not native.available() or not shutil.which("objdump"), reason="no compiled library, or no objdump")
@pytest.mark.parametrize(("instructions", "functions"), NEWER.items(), ids=["bf16", "AMX", "VNNI", "VBMI"])
def test_newer_instructions_stand_in_functions_that_are_asked_for(instructions: str, functions: str) -> None:
    loaded = library()
    assert loaded is not None
    listing = subprocess.run(
        ["objdump", "--disassemble", "--no-show-raw-insn", loaded._name], check=True, capture_output=True, text=True
    ).stdout
    holders = set()
    function = ""
    for line in listing.splitlines():
        if begin := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            function = begin[1]
        elif (parts := line.split("\t")) and len(parts) > 1 and re.match(rf"({instructions})\b", parts[1]):
            holders.add(function)
    assert holders, "the library has none, or objdump does not know them"
    assert not [name for name in holders if not re.match(functions, name)]
