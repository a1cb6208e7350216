"""A small hub on loopback, which speaks what `huggingface_hub` asks for: what a repository has, and its files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin")  # what the hub keeps apart, by sha256


@dataclass
class Hub:
    """Repositories by name, each with files by name."""

    repositories: dict[str, dict[str, bytes]]
    revisions: tuple[str, ...] = ("main", COMMIT, "v1")
    token: str = ""  # who does not show it finds nothing
    damaged: set[str] = field(default_factory=set)  # files that are served with another last byte
    cut: dict[str, int] = field(default_factory=dict)  # files whose next answer breaks off after so many bytes
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def fetched(self) -> set[str]:
        """The files whose content was asked for."""
        return {path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("range", "")))
        if hub.token and self.headers.get("authorization") != f"Bearer {hub.token}":
            return self._refuse(401, "RepoNotFound")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            return self._about(match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            return self._tree(match[1], match[2])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(match[1], match[2], match[3])
        return self._refuse(404, "EntryNotFound")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": "not here"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _about(self, name: str, revision: str) -> None:
        files = self.hub.repositories.get(name)
        if files is None:
            return self._refuse(404, "RepoNotFound")
        if revision not in self.hub.revisions:
            return self._refuse(404, "RevisionNotFound")
        siblings = [
            {
                "rfilename": file,
                "size": len(content),
                "blobId": _blob(content),
                **({"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                   if file.endswith(LARGE) else {}),
            }
            for file, content in files.items()
        ]  # fmt: skip
        body = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}).encode()
        return self._send(200, body, {"Content-Type": "application/json"})

    def _tree(self, name: str, revision: str) -> None:
        files = self.hub.repositories.get(name)
        if files is None or revision not in self.hub.revisions:
            return self._refuse(404, "RevisionNotFound")
        listed = [
            {
                "type": "file",
                "path": file,
                "size": len(content),
                "oid": _blob(content),
                **({"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                   if file.endswith(LARGE) else {}),
            }
            for file, content in files.items()
        ]  # fmt: skip
        return self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, file: str) -> None:
        content = self.hub.repositories.get(name, {}).get(file)
        if content is None or revision not in self.hub.revisions:
            return self._refuse(404, "EntryNotFound")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if file in self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", "")):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "GET" and (most := self.hub.cut.pop(file, None)) is not None:
            self._send(200, content[:most], {**headers, "Content-Length": str(len(content))})
            self.close_connection = True
            return None
        return self._send(206 if start else 200, content[start:], headers)


def _blob(content: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
