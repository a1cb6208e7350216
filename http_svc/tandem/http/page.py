"""A page to try the model, at `/`: files of the package, which ask for nothing from anywhere else."""

from __future__ import annotations

import hashlib
import mimetypes
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# Scripts and styles come from these files alone, and only this server is called.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked again each time, answered 304
}
TYPES = {".js": "text/javascript"}  # some systems know another


def page_routes() -> list[Route]:
    """The routes of the page and of each of its files, which are read once."""
    folder = resources.files("tandem.http") / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return [_route("/", "index.html", files["index.html"])] + [
        _route(f"/page/{name}", name, content) for name, content in sorted(files.items()) if name != "index.html"
    ]


def _route(path: str, name: str, content: bytes) -> Route:
    suffix = name[name.rindex(".") :]
    kind = TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": tag}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return Route(path, serve)
