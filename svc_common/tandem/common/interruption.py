"""Work that something else may cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def done_unless(cut: Coroutine[Any, Any, object], work: Coroutine[Any, Any, object]) -> bool:
    """Does the work, unless `cut` returns first, which cancels it. Returns whether it was done; where both end in the
    same turn it was. Raises what the work raises."""
    task, other = asyncio.create_task(work), asyncio.create_task(cut)
    try:
        await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, other):
            each.cancel()
        await asyncio.gather(task, other, return_exceptions=True)
