"""A web service that streams answers: uvicorn fastapi_app:app, then curl 'localhost:8000/tell?prompt=ROMEO:'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tandem.client import AsyncClient


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as app.state.client:  # one for all requests, on uvicorn's event loop
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/tell")
async def tell(prompt: str, max_tokens: int = 64) -> StreamingResponse:
    async def texts() -> AsyncIterator[str]:
        # A caller who leaves ends the block, which ends the generation at the worker.
        async with app.state.client.stream(prompt, max_tokens=max_tokens) as stream:
            async for chunk in stream:
                yield chunk.text

    return StreamingResponse(texts(), media_type="text/plain")
