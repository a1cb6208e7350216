"""Looks for inputs that the tokenizer service cannot take: mutations of messages, texts, id streams, conversations and
vocabulary files, led by the branches of our own code that they reach (atheris, libFuzzer's Python face).

    python tests/fuzz/tokenizer.py --minutes 10                  every target, a share of the time each
    python tests/fuzz/tokenizer.py --minutes 10 --target formats
    python tests/fuzz/tokenizer.py --target formats crash-...    an input that was found, once more

What breaks a target ends it, prints the traceback and leaves the input in --found. The exit code is then 1. Needs
`pip install atheris`; real vocabularies are taken from --data where that folder is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
TARGETS = ("encode", "stream", "chat", "formats", "messages")
INPUT_SECONDS = 60  # one input may take so long; beyond that it counts as hung


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--target", choices=TARGETS, action="append", help="repeatable; default: all")
    parser.add_argument("--data", type=Path, default=HERE.parents[3] / "shared/data")
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir(), "tandem-fuzz"))
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process: one target
    parser.add_argument("inputs", nargs="*", help="files to run once instead of looking for new ones")
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    if options.here:
        fuzz(targets[0], options)
    options.found.mkdir(parents=True, exist_ok=True)
    broken = [name for name in targets if run_apart(name, options, options.minutes * 60 / len(targets))]
    print("broken: " + ", ".join(broken) if broken else "nothing found")
    return 1 if broken else 0


def run_apart(name: str, options: argparse.Namespace, seconds: float) -> bool:
    """Fuzzes one target in a process of its own, which a crash of a native library may end. Whether something broke."""
    print(f"--- {name}: {seconds:.0f} s", flush=True)
    command = [sys.executable, str(HERE), "--here", "--target", name, "--minutes", str(seconds / 60)]
    command += ["--data", str(options.data), "--found", str(options.found), "--seed", str(options.seed)]
    return subprocess.run([*command, *options.inputs], check=False).returncode != 0


def fuzz(name: str, options: argparse.Namespace) -> None:
    """Never returns."""
    import atheris

    sys.path.insert(0, str(HERE.parents[2]))
    with atheris.instrument_imports(include=["tandem.tokenizer"], enable_loader_override=False):
        from tests.fuzz import tokenizer_targets

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        target = tokenizer_targets.TARGETS[name](options.data if options.data.is_dir() else None, Path(folder))
        for number, seed in enumerate(target.seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        flags = [
            f"-max_total_time={int(options.minutes * 60)}",
            f"-timeout={INPUT_SECONDS}",
            "-rss_limit_mb=4096",
            "-max_len=16384",
            "-print_final_stats=1",
            "-verbosity=1",
            f"-seed={options.seed}",
            f"-artifact_prefix={options.found}/{name}-",
        ]
        atheris.Setup([name, *flags, *(options.inputs or [str(corpus)])], target)
        atheris.Fuzz()


if __name__ == "__main__":
    raise SystemExit(main())
