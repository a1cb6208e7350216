"""Generates the Python stubs and their types next to the proto files.

python protos/generate.py           write them
python protos/generate.py --check   exit 1 and name each file that is not what the proto files give
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Writes the stubs of every proto file under ROOT into `out`; raises SystemExit when protoc refuses."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    well_known = files("grpc_tools").joinpath("_proto")
    scripts = Path(sys.executable).parent  # the environment need not be activated
    code: int = protoc.main(
        ["protoc", f"-I{ROOT}", f"-I{well_known}"]
        + [f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
        + [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python")]
        + [f"--{plugin}_out=quiet:{out}" for plugin in ("mypy", "mypy_grpc")]
        + protos
    )
    if code:
        raise SystemExit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        made = {path.relative_to(fresh) for path in fresh.rglob("*") if path.name.endswith(SUFFIXES)}
        kept = {path.relative_to(ROOT) for path in ROOT.rglob("*") if path.name.endswith(SUFFIXES)}
        stale = sorted(
            path
            for path in made | kept
            if path not in made or path not in kept or (fresh / path).read_bytes() != (ROOT / path).read_bytes()
        )
    for path in stale:
        print(f"stale: protos/{path} (run: make protos)", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
