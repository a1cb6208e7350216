"""Makes a zip archive of the tokenizer's files for GetTokenizer, once, when it is first asked for. A process of its own
does, since that loads torch and reads files that may be anything."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import tempfile
from pathlib import Path

from tandem.common.errors import failed_precondition

logger = logging.getLogger("tandem.worker")

_SECONDS = 300.0
CHUNK_BYTES = 1 << 20


class TokenizerArchive:
    """Makes and keeps the archive of one model."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._making: asyncio.Task[bytes] | None = None

    async def content(self) -> tuple[bytes, str]:
        """Returns the archive and its SHA-256. Raises FAILED_PRECONDITION where there is no exact `tokenizer.json`."""
        if self._making is None or (self._making.done() and self._failed(self._making)):
            self._making = asyncio.create_task(self._make())
        content = await asyncio.shield(self._making)
        return content, hashlib.sha256(content).hexdigest()

    @staticmethod
    def _failed(making: asyncio.Task[bytes]) -> bool:
        return making.cancelled() or making.exception() is not None

    async def _make(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="tandem-tokenizer-") as folder:
            target = Path(folder) / "tokenizer.zip"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tandem.worker.convert.tokenizer_json", str(self._model), str(target)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_SECONDS):
                    output, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if process.returncode:
                why = _reason(output)
                logger.warning("the gateway cannot have this tokenizer: %s", why)
                raise failed_precondition(f"this model has no exact tokenizer.json: {why}", reason="NO_TOKENIZER_JSON")
            return target.read_bytes()


def _reason(output: bytes) -> str:
    try:
        return str(json.loads(output)["error"])
    except (ValueError, KeyError, TypeError):
        return "the process that makes it ended"
