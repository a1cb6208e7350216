"""Mutated files of models and tokenizers, each loaded in a process of its own: it is taken or refused with a word, soon
and with little memory."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import struct
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tandem.worker.convert.run import convert
from tests.fuzz import loading
from tests.fuzz.templates import template
from tests.tokenizer_svc.gguf_writer import gguf_bytes
from tests.tokenizer_svc.test_gguf import byte_pairs, scored
from tests.tokenizer_svc.test_walked_files import FILES, GONE, changed, places

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
LOAD_SECONDS = 60.0  # of a file of a few megabytes; beyond that it counts as hung
LOAD_MEGABYTES = 1024.0  # above what a process has before it loads anything
HEAD = 8192  # bytes at the beginning, where lengths and kinds are
NUMBERS = (0, 1, -1, 2, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63))
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    1e308,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\0",
    "\ud800",
    None,
    True,
    [],
    {},
    [[]],
    GONE,
    10**400,
)


@dataclass(frozen=True)
class Original:
    """A file that loads: `name` within a folder of that `kind`."""

    kind: str  # "model" or "tokenizer"
    name: str
    content: bytes
    beside: tuple[Path, ...] = ()  # files that lie in the folder as well


def originals(folder: Path) -> list[Original]:
    """One or more of every format; `folder` is for files made here."""
    gguf = folder / "model.gguf"
    convert(DEMO, gguf, "gguf", "auto", lambda done, total: None)
    names = ("config.json", "generation_config.json", "model.safetensors")
    model = {name: DEMO / name for name in names}
    found = [
        Original("model", name, path.read_bytes(), tuple(each for each in model.values() if each != path))
        for name, path in model.items()
    ]
    found.append(Original("model", gguf.name, gguf.read_bytes()))
    found.append(Original("tokenizer", gguf.name, gguf.read_bytes()))
    found.append(Original("tokenizer", "tokenizer.model", (DEMO / "tokenizer.model").read_bytes()))
    vocabularies = [gguf_bytes(byte_pairs()), gguf_bytes(scored())]
    found.extend(Original("tokenizer", "vocabulary.gguf", content) for content in vocabularies)
    found.extend(Original("tokenizer", "tokenizer.json", json.dumps(make()).encode()) for make in FILES.values())
    added = {"1": {"content": "<s>", "special": True}}
    config = json.dumps({"bos_token": "<s>", "added_tokens_decoder": added, "chat_template": "x"}).encode()
    found.append(Original("tokenizer", "tokenizer_config.json", config, (DEMO / "tokenizer.model",)))
    return found


def mutated(original: Original, random: Random) -> bytes:
    """Its content with one to four changes."""
    content = original.content
    if original.name.endswith(".json"):
        return _json(content, random)
    if original.name.endswith(".safetensors") and random.random() < 0.7:
        size = struct.unpack_from("<Q", content)[0]
        header = _json(content[8 : 8 + size], random)
        length = len(header) if random.random() < 0.9 else random.choice(NUMBERS) % 2**64
        return struct.pack("<Q", length) + header + content[8 + size :]
    data = bytearray(content)
    for _ in range(random.randint(1, 4)):
        _bytes(data, random)
    return bytes(data)


def _bytes(data: bytearray, random: Random) -> None:
    place = random.randrange(min(HEAD, len(data)) if random.random() < 0.8 else len(data)) if data else 0
    match random.randrange(6):
        case 0 if data:
            data[place] ^= 1 << random.randrange(8)
        case 1:
            data[place : place + 4] = struct.pack("<I", random.choice(NUMBERS) % 2**32)
        case 2:
            data[place : place + 8] = struct.pack("<Q", random.choice(NUMBERS) % 2**64)
        case 3:
            del data[random.randrange(len(data) + 1) if random.random() < 0.5 else place :]
        case 4:
            del data[place : place + random.randrange(1, 64)]
        case _:
            data[place:place] = random.randbytes(random.randrange(1, 64))


def _json(content: bytes, random: Random) -> bytes:
    if random.random() < 0.1:
        data = bytearray(content)
        _bytes(data, random)
        return bytes(data)
    value: Any = json.loads(content)
    for _ in range(random.randint(1, 3)):
        if all_places := list(places(value)):
            place = random.choice(all_places)
            templates = place[-1] == "chat_template" and random.random() < 0.8
            value = changed(value, place, template(random) if templates else random.choice(VALUES))
    text = json.dumps(value)
    if random.random() < 0.05:
        text = '{"a":' * 100_000 + text
    return text.encode()


def fuzz(minutes: float, seed: int, first: int = 1, most: int | None = None) -> Counter[str]:
    """Loads mutated files, from number `first` on; what was found, each with how often."""
    # A process that has everything imported is forked for each file.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    found: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    until = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = originals(folder)
        before = max(_load(processes, each.kind, _write(each, each.content, folder))[2] for each in files[:4])
        number = first
        while time.monotonic() < until and (most is None or number < first + most):
            random = Random(f"{seed} file {number}")
            kind, file = random.choice(sorted({(each.kind, each.name) for each in files}))
            original = random.choice([each for each in files if (each.kind, each.name) == (kind, file)])
            end, words, megabytes = _load(processes, original.kind, _write(original, mutated(original, random), folder))
            if end != "broken" and megabytes > before + LOAD_MEGABYTES:
                end, words = "broken", f"takes {megabytes:.0f} MB"
            ends[f"{original.kind} {original.name} {end}"] += 1
            if end == "broken":
                what = f"{original.kind} {original.name}: {words.strip().splitlines()[-1][:200]}"
                found[what] += 1
                if found[what] == 1:
                    print(f"FOUND {what}, file {number}\n{words}", flush=True)
            number += 1
    print(f"{number - first} files")
    for end, count in sorted(ends.items()):
        print(f"  {end} {count}")
    return found


def _write(original: Original, content: bytes, folder: Path) -> Path:
    """The path to load."""
    place = folder / "loaded"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / original.name).write_bytes(content)
    for path in original.beside:
        (place / path.name).symlink_to(path)
    return place


def _load(processes: Any, kind: str, path: Path) -> tuple[str, str, float]:
    ours, theirs = processes.Pipe()
    process = processes.Process(target=loading.load, args=(kind, path, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(LOAD_SECONDS):
            return "broken", f"takes more than {LOAD_SECONDS:g} s", 0.0
        outcome: tuple[str, str, float] = ours.recv()
        return outcome
    except EOFError:
        process.join()
        return "broken", f"the process ended with {process.exitcode}", 0.0
    finally:
        process.kill()
        process.join()
        ours.close()
