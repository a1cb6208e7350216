"""The routes, behind the border."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem.client import ModelInfo
from tandem.common.bearer_tokens import BearerTokens
from tandem.common.open_calls import RunningRpcs
from tandem.common.service import Lifecycle
from tandem.http.border import Border
from tandem.http.chat import ChatCompletions
from tandem.http.completions import Completions
from tandem.http.errors import ApiError
from tandem.http.messages import Messages
from tandem.http.metrics import HttpMetrics
from tandem.http.page import page_routes
from tandem.http.responses import Responses
from tandem.http.settings import HttpSettings
from tandem.http.tokens import Tokens
from tandem.http.upstream import Upstream


def make_app(
    settings: HttpSettings,
    upstream: Upstream,
    metrics: HttpMetrics,
    lifecycle: Lifecycle,
    running: RunningRpcs,
    tokens: BearerTokens | None,
) -> Starlette:
    """The ASGI application."""
    texts, messages = Tokens(upstream), Messages(upstream)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": lifecycle.state}, 200 if lifecycle.serving else 503)

    async def models(request: Request) -> Response:
        served = await upstream.models()
        return JSONResponse({"object": "list", "data": [_model(*each, upstream.began) for each in served.items()]})

    async def model(request: Request) -> Response:
        found = (await upstream.models()).get(request.path_params["model"])
        if found is None:
            raise ApiError(404, "the model is not served here", param="model", code="model_not_found")
        return JSONResponse(_model(request.path_params["model"], found, upstream.began))

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/v1/chat/completions", ChatCompletions(upstream).create, methods=["POST"]),
        Route("/v1/completions", Completions(upstream).create, methods=["POST"]),
        Route("/v1/responses", Responses(upstream).create, methods=["POST"]),
        Route("/v1/messages", messages.create, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count, methods=["POST"]),
        Route("/tokenize", texts.tokenize, methods=["POST"]),
        Route("/detokenize", texts.detokenize, methods=["POST"]),
        Route("/tokenizer_info", texts.info),
    ]
    page = page_routes() if settings.page else []
    border = Middleware(
        Border,
        routes=[route.path for route in [*routes, *page]],
        open_routes=["/health", *(route.path for route in page)],
        lifecycle=lifecycle,
        running=running,
        metrics=metrics,
        tokens=tokens,
        max_body_bytes=settings.max_message_bytes,
        max_calls=settings.max_concurrent_calls,
    )
    middleware = [border]
    if settings.cors_origin:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
        middleware.insert(0, cors)
    app = Starlette(routes=[*routes, *page], middleware=middleware, exception_handlers={HTTPException: _as_ours})
    app.router.redirect_slashes = False
    return app


def _model(name: str, model: ModelInfo, began: int) -> dict[str, object]:
    """What vLLM tells, too: `parent` is the model that an adapter is beside."""
    return {
        "id": name,
        "object": "model",
        "created": began,
        "owned_by": "tandem",
        "max_model_len": model.context_length,
        "parent": None if name == model.name else model.name,
    }


async def _as_ours(request: Request, error: Exception) -> Response:
    """Of the router itself: an unknown path, or a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        raise ApiError(405, f"this path is for {allowed}", code="method_not_allowed", allow=allowed)
    raise ApiError(error.status_code, "there is nothing at this path", code="unknown_url")
