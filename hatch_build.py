"""Compiles the C libraries into the wheel, which is then one for this kind of machine, and brings the demo model.

| `TANDEM_WHEEL` | |
|---|---|
| unset | compiled where there is a C compiler; else pure, which is said, and each machine compiles for itself |
| `compiled` | an error where they cannot be compiled |
| `pure` | not compiled |

An editable installation compiles at first use, as `tandem.common.compiled` says.

The demo model is what `tandem run` and `tandem chat` use where no model is named. Images are built without it.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
DEMO = ROOT / "models" / "demo"
DECLARED = "\nSOURCES = CSources("


def libraries(root: Path = ROOT) -> list[Any]:
    """The C sources that modules of this tree declare. They are run by path: their packages may need what is not
    installed while a wheel is built."""
    sys.path.insert(0, str(root / "svc_common"))
    modules = sorted(path for path in root.glob("*/tandem/**/*.py") if DECLARED in path.read_text("utf-8"))
    return [runpy.run_path(str(path))["SOURCES"] for path in modules]


class CompiledLibraries(BuildHookInterface[Any]):
    """What hatchling runs before it makes a wheel, and afterwards."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("TANDEM_WHEEL", "")
        if wish not in ("", "compiled", "pure"):
            raise SystemExit(f"TANDEM_WHEEL={wish}: allowed are compiled, pure, or nothing")
        if version == "editable":
            return
        if DEMO.is_dir():
            build_data["force_include"][str(DEMO)] = "tandem/demo"
        if wish == "pure":
            return
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-wheel-")
        here = [sources for sources in libraries() if sources.for_this_machine]
        from tandem.common.compiled import CompileError

        try:
            if sys.platform != "linux":
                raise CompileError(f"libraries are made on Linux, and this is {sys.platform}")
            made = {sources.compile_into(Path(self.folder.name), portable=True): sources.folder for sources in here}
        except (OSError, CompileError) as error:
            if wish == "compiled":
                raise SystemExit(f"TANDEM_WHEEL=compiled: {error}") from error
            self.app.display_warning(
                f"THE WHEEL IS PURE: {error}. Each machine compiles at first use, or is slower without a compiler"
            )
            return
        # The first folder is not part of a package's name.
        places = {file: Path(*folder.relative_to(ROOT).parts[1:]) / file.name for file, folder in made.items()}
        build_data["force_include"].update({str(file): place.as_posix() for file, place in places.items()})
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
