"""Every kind of request that the services know, drawn from a seed, through the SDK; and some that mean harm. As many
come by the HTTP door."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import httpx

from tandem.client import AsyncClient, Choices, Conversation, Grammar, JsonSchema, Regex, TandemError
from tests.soak import door as http
from tests.soak.door import Door
from tests.soak.words import text

Kind = Callable[[AsyncClient, Random], Awaitable[object]]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


async def plain(client: AsyncClient, random: Random) -> None:
    await client.generate(text(random), max_tokens=random.randint(1, 60), temperature=random.choice((0.0, 1.0)))


async def streamed(client: AsyncClient, random: Random) -> None:
    async with client.stream(text(random), max_tokens=random.randint(1, 60), stop=["\n\n", "lord"]) as stream:
        async for _ in stream:
            pass


async def cancelled(client: AsyncClient, random: Random) -> None:
    chunks = random.randint(0, 10)
    async with client.stream(text(random), max_tokens=200, ignore_eos=True) as stream:
        async for _ in stream:
            chunks -= 1
            if chunks <= 0:
                break


async def late(client: AsyncClient, random: Random) -> None:
    await client.generate(text(random), max_tokens=200, ignore_eos=True, timeout=random.uniform(0.001, 0.3))


async def several(client: AsyncClient, random: Random) -> None:
    n = random.randint(2, 6)
    await client.generate(text(random), max_tokens=20, n=n, best_of=n + random.randint(0, 2), logprobs=True)


async def guessed(client: AsyncClient, random: Random) -> None:
    await client.generate(text(random, 5) * 5, max_tokens=40, draft_tokens=4, prompt_lookup=2)


async def guided(client: AsyncClient, random: Random) -> None:
    number = random.randint(1, 1000)
    guide = random.choice(
        (
            Regex(f"[a-z]{{1,{number % 30 + 1}}}"),
            Choices([f"{number}", "no", "perhaps"]),
            JsonSchema(
                {"type": "object", "properties": {f"p{number}": {"type": "integer"}}, "additionalProperties": False}
            ),
            Grammar(f'start: "a"{{1,{number % 20 + 1}}} "b"'),
        )
    )
    await client.generate(text(random, 10), max_tokens=30, guided=guide)


async def chat(client: AsyncClient, random: Random) -> None:
    messages = [{"role": "user", "content": text(random, 30)} for _ in range(random.randint(1, 4))]
    await client.chat(Conversation(messages, chat_template=TEMPLATE), max_tokens=random.randint(1, 30))


async def encoded(client: AsyncClient, random: Random) -> None:
    found = await client.encode_batch([text(random) for _ in range(8)], offsets=True, pieces=True)
    await client.decode_batch([each.ids for each in found])


async def hostile(client: AsyncClient, random: Random) -> None:
    length = random.randint(1, 1_000_000)
    what = random.randrange(7)
    if what == 0:
        await client.encode(" " * length + "a")
    elif what == 1:
        await client.encode(random.choice("aé龘") * (length // 2), offsets=True)
    elif what == 2:
        await client.encode("".join(chr(random.randrange(0x20, 0xD000)) for _ in range(length // 10)))
    elif what == 3:
        await client.chat(
            Conversation([{"role": "user", "content": "a"}], chat_template="{% for a in range(9) %}" * 200),
            max_tokens=2,
        )
    elif what == 4:
        await client.generate("a", guided=Regex("(" * (length % 200)), max_tokens=2)
    elif what == 5:
        await client.decode([random.randrange(2048) for _ in range(length // 10)])
    else:
        await client.generate(text(random), max_tokens=2, stop_token_ids=[2**31 + length])


KINDS: dict[Kind, int] = {  # and how often of 100
    plain: 34, streamed: 12, cancelled: 10, late: 6, several: 8, guessed: 6, guided: 8, chat: 6, encoded: 6, hostile: 4,
}  # fmt: skip


DOOR_SHARE = 0.5  # of the requests come by the HTTP door
REFUSED = frozenset({hostile, late, guided, chat})  # that may be


class Traffic:
    """`lanes` requests at once, until it is told to stop; each lane rests `pause` seconds in the mean between two."""

    def __init__(self, client: AsyncClient, door: Door, seed: int, lanes: int, pause: float = 0.0) -> None:
        self._client, self._door = client, door
        self._seed, self._lanes, self._pause = seed, lanes, pause
        self._numbers = itertools.count()
        self.ended: Counter[str] = Counter()  # how
        self.unexpected: list[str] = []

    @property
    def requests(self) -> int:
        """That have ended."""
        return self.ended.total()

    async def run(self, goes_on: Callable[[], bool]) -> None:
        await asyncio.gather(*(self._lane(goes_on) for _ in range(self._lanes)))

    async def _lane(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            random = Random(f"{self._seed} {next(self._numbers)}")
            if random.random() < DOOR_SHARE:
                await self._by_door(random)
            else:
                await self._by_sdk(random)
            await asyncio.sleep(random.uniform(0, 2 * self._pause))

    async def _by_sdk(self, random: Random) -> None:
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        try:
            await kind(self._client, random)
            self.ended["done"] += 1
        except TandemError as refusal:
            self.ended[type(refusal).__name__] += 1
            if kind not in REFUSED:
                self.unexpected.append(f"{kind.__name__}: {refusal!r}"[:500])

    async def _by_door(self, random: Random) -> None:
        (kind,) = random.choices(list(http.KINDS), list(http.KINDS.values()))
        try:
            self.ended[await kind(self._door, random)] += 1
        except (AssertionError, httpx.HTTPError) as error:
            self.ended["http failed"] += 1
            self.unexpected.append(f"door, {kind.__name__}: {error!r}"[:500])
