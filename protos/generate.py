"""Generates what is made from the proto files: the Python stubs next to them, and the files that parameters.py and
accounts.py name.

python protos/generate.py           write them
python protos/generate.py --check   exit 1 and name each file that is not what the proto files give
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
REPOSITORY = ROOT.parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generated() -> dict[Path, bytes]:
    """Returns every generated file, by its path in the repository. Raises SystemExit when protoc fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        described = out / "descriptors"
        _run_protoc(out, described)
        made = {Path("protos") / path.relative_to(out): path.read_bytes() for path in out.rglob("*_pb2*")}
        sys.path[:0] = [folder, str(ROOT)]  # the stubs that were made just now, not those that are to be replaced
        import accounts
        import parameters

        page = (REPOSITORY / "docs" / "sampling.md").read_text()
        descriptors = FileDescriptorSet.FromString(described.read_bytes())
        texts = parameters.files(descriptors, page) | accounts.files(descriptors)
        return made | {Path(path): text.encode() for path, text in texts.items()}


def _run_protoc(out: Path, described: Path) -> None:
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    well_known = files("grpc_tools").joinpath("_proto")
    scripts = Path(sys.executable).parent  # the environment need not be activated
    code: int = protoc.main(
        ["protoc", f"-I{ROOT}", f"-I{well_known}"]
        + [f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
        + [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python")]
        + [f"--{plugin}_out=quiet:{out}" for plugin in ("mypy", "mypy_grpc")]
        + ["--include_source_info", f"--descriptor_set_out={described}"]
        + protos
    )
    if code:
        raise SystemExit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    made = generated()
    stubs = {path.relative_to(REPOSITORY) for path in ROOT.rglob("*") if path.name.endswith(SUFFIXES)}
    stale = sorted(
        path
        for path in made.keys() | stubs
        if path not in made or not (REPOSITORY / path).exists() or (REPOSITORY / path).read_bytes() != made[path]
    )
    if check:
        for path in stale:
            print(f"stale: {path} (run: make protos)", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in made:
            (REPOSITORY / path).write_bytes(made[path])
        else:
            (REPOSITORY / path).unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
