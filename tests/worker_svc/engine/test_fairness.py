"""Several callers in one scheduler: each gets its share, nothing stands idle, nobody starves."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.worker.engine.budget import SCORED_TOKENS, Chunk
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.fairness import GUEST_STEPS, MAX_REMEMBERED, Fairness
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Request
from tandem.worker.engine.scheduler import Scheduler, SchedulerLimits
from tandem.worker.engine.speculation.costs import Free
from tests.worker_svc.engine.counting import VOCABULARY, CountingRunner, counting_request


class Watched:
    """An engine that counts, with what each caller was given, checked after every step."""

    def __init__(
        self,
        *,
        pages: int = 64,
        page_size: int = 4,
        budget: int = 16,
        running: int = 8,
        overlap: bool = False,
        check_every: int = 8,
        crowd: int | None = None,
    ) -> None:
        self.runner = CountingRunner(pages, page_size)
        limits = SchedulerLimits(max_batch_tokens=budget, max_running=running, crowd=crowd)
        self.engine = Engine(self.runner, PageTable(pages, page_size), limits, overlap=overlap, costs=Free())
        self.callers: dict[int, str] = {}
        self.given: Counter[str] = Counter()  # tokens computed
        self.tokens: Counter[str] = Counter()  # output
        self.first: dict[int, int] = {}  # number -> step of its first token
        self.output: Counter[int] = Counter()
        self.ended: set[int] = set()
        self.steps = 0
        self.decodes: Counter[str] = Counter()  # of the last step
        self.longest_rest = 0
        self.check_every = check_every
        self._numbers = count()
        self.engine.scheduler = TellingScheduler(self.engine.table, limits, self)

    def submit(self, caller: str, prompt: int, output: int, **options: object) -> int:
        number = next(self._numbers)
        request = counting_request(number, 7 * number % VOCABULARY, prompt, output, caller=caller, **options)
        self.callers[number] = caller
        self.engine.submit(request)
        return number

    def see(self, chunks: Sequence[Chunk]) -> None:
        """Nothing is left undone that a step could have done."""
        scheduler = self.engine.scheduler
        for chunk in chunks:
            self.given[chunk.request.caller] += chunk.length
        self.decodes = Counter(chunk.request.caller for chunk in chunks if chunk.length == 1)
        self.longest_rest = max([self.longest_rest, *(each.turn.rested for each in scheduler.running)])
        used = sum(chunk.length for chunk in chunks)
        assert used <= scheduler.limits.max_batch_tokens
        if used == scheduler.limits.max_batch_tokens or sum(c.length for c in chunks if c.scores) >= SCORED_TOKENS:
            return
        planned = {chunk.request.number for chunk in chunks}
        standing = [each for each in scheduler.running if each.number not in planned and not each.complete]
        assert all(each.turn.rested for each in standing), "a running one stands"
        assert not standing or {*scheduler.fairness._many} >= {each.caller for each in standing}
        head = scheduler.queue.head
        places = scheduler.limits.max_running - len(scheduler.running)
        if head is not None and places and not scheduler.fairness.keeps_from(head, places):
            wanted = scheduler.table.pages_for(head.num_tokens)
            assert wanted + len(scheduler.running) > scheduler.table.available, "the next one would have fitted"

    def step(self) -> None:
        result = self.engine.step()
        self.steps += 1
        for number in result.numbers.tolist():
            self.first.setdefault(number, self.steps)
            self.tokens[self.callers[number]] += 1
            self.output[number] += 1
        self.ended |= {finish.number for finish in result.finished}
        if self.steps % self.check_every == 0:
            self.engine.check()


class TellingScheduler(Scheduler):
    """Shows what it has chosen."""

    def __init__(self, table: PageTable, limits: SchedulerLimits, watched: Watched) -> None:
        super().__init__(table, limits)
        self.watched = watched

    def schedule(self) -> list[Chunk]:
        chunks = super().schedule()
        self.watched.see(chunks)
        return chunks


REQUESTS = st.tuples(
    st.sampled_from("abc"),  # caller
    st.integers(1, 20),  # prompt
    st.integers(1, 12),  # output
    st.sampled_from([0, 0, 0, 3]),  # priority
    st.integers(0, 3),  # steps before it comes
)


@settings(max_examples=60)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=24),
    pages=st.integers(10, 40),
    budget=st.integers(6, 40),
    running=st.integers(1, 6),
    overlap=st.booleans(),
    crowd=st.sampled_from([None, 1, 2]),
)
def test_whoever_asks_nothing_stands_idle_and_everybody_is_served(requests, pages, budget, running, overlap, crowd):
    watched = Watched(pages=pages, budget=budget, running=running, overlap=overlap, check_every=1, crowd=crowd)
    wanted: dict[int, int] = {}
    for caller, prompt, output, priority, pause in requests:
        for _ in range(pause):
            watched.step()
        wanted[watched.submit(caller, prompt, output, priority=priority)] = output
    for _ in range(4000):
        if not watched.engine.has_work:
            break
        watched.step()
    assert watched.output == wanted
    assert watched.ended == set(wanted)
    assert watched.engine.table.referenced == 0


class Backlog:
    """A caller that always has `depth` requests in the engine."""

    def __init__(self, watched: Watched, caller: str, depth: int, prompt: int, output: int) -> None:
        self.watched, self.caller, self.depth, self.size = watched, caller, depth, (prompt, output)
        self.alive: set[int] = set()

    def fill(self) -> None:
        self.alive -= self.watched.ended
        while len(self.alive) < self.depth:
            self.alive.add(self.watched.submit(self.caller, *self.size))


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(12, 40))


@settings(max_examples=10)
@given(sizes=st.lists(SIZES, min_size=2, max_size=4), pages=st.sampled_from([64, 400]), overlap=st.booleans())
def test_callers_that_always_wait_get_equal_shares_whatever_they_ask_for(sizes, pages, overlap):
    watched = Watched(pages=pages, budget=24, running=8, overlap=overlap)
    backlogs = [Backlog(watched, chr(97 + i), depth, prompt, output) for i, (prompt, output, depth) in enumerate(sizes)]
    served = []
    for _ in range(160):
        for backlog in backlogs:
            backlog.fill()
        watched.step()
        fairness = watched.engine.scheduler.fairness
        served.append([fairness.served(backlog.caller) for backlog in backlogs])
    # What may be in flight when a choice is made: eight running requests of the longest kind, and one step.
    bound = 2 * (8 * max(prompt + output for prompt, output, _ in sizes) + 24)
    assert max(max(each) - min(each) for each in served) <= bound


def test_a_caller_with_64_long_requests_leaves_four_others_their_shares():
    watched = Watched(pages=2000, page_size=4, budget=64, running=16)
    hog = Backlog(watched, "hog", 64, 200, 200)
    hog.fill()
    for _ in range(60):
        watched.step()
    others = [Backlog(watched, name, 8, 20, 20) for name in ("b", "c", "d", "e")]
    watched.given.clear()
    for _ in range(300):
        for backlog in (hog, *others):
            backlog.fill()
        watched.step()
    fair = sum(watched.given.values()) / 5
    assert min(watched.given[backlog.caller] for backlog in others) >= 0.8 * fair
    assert watched.engine.scheduler.statistics.places_ceded > 0


@pytest.mark.parametrize("prompt", [8, 60, 240])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_first_token_beside_a_flood_comes_within_twice_the_steps_that_it_takes_alone(prompt: int, overlap: bool):
    def steps_to_first_token(*, flooded: bool) -> int:
        watched = Watched(pages=1500, page_size=4, budget=32, running=8, overlap=overlap)
        hog = Backlog(watched, "hog", 64 if flooded else 0, 300, 300)
        for _ in range(200 if flooded else 0):
            hog.fill()
            watched.step()
        before = watched.steps
        number = watched.submit("other", prompt, 4)
        while number not in watched.first:
            hog.fill()
            watched.step()
        return watched.first[number] - before

    alone, flooded = steps_to_first_token(flooded=False), steps_to_first_token(flooded=True)
    # A step that is in flight already, or in which the first request of the hog comes first, is lost.
    assert flooded <= 2 * alone + 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("callers", ["b", "bcde"])
def test_beside_few_decodes_a_flood_has_as_many_or_the_crowd_and_each_of_its_streams_goes_on(callers, overlap):
    crowd = 8
    watched = Watched(pages=4096, budget=128, running=32, overlap=overlap, crowd=crowd)
    for _ in range(40):
        watched.submit("flood", 8, 200)
    for _ in range(20):
        watched.step()
    assert watched.decodes["flood"] == 32, "nobody rests for nobody"
    asking = {watched.submit(caller, 8, 40): caller for caller in callers}
    before = dict(watched.output)
    steps = 0
    while asking:
        watched.step()
        steps += 1
        assert not any(watched.decodes[caller] for caller in callers) or watched.decodes["flood"] <= crowd
        for number in [number for number in asking if number in watched.ended]:
            del asking[number]
    assert steps <= 40 + 2 + 2 * overlap, "one in each step from the first on"
    kept = [each.number for each in watched.engine.scheduler.running if before.get(each.number)]
    assert len(kept) >= 32 - len(callers)
    assert min(watched.output[number] - before[number] for number in kept) >= steps * (crowd - 1) // 32 - 1
    assert watched.longest_rest <= 32 // crowd + 1


def test_a_place_waits_some_steps_for_the_next_request_of_who_has_left_and_then_no_longer():
    watched = Watched(pages=4096, budget=128, running=8, crowd=4)
    for _ in range(12):
        watched.submit("flood", 8, 200)
    while len(watched.output) < 8:
        watched.step()
    for _ in range(3):
        number = watched.submit("b", 8, 6)
        while number not in watched.ended:
            watched.step()
        ceded = watched.engine.scheduler.statistics.places_ceded
        assert ceded == 1, "the first request took a place, the next ones had it kept"
        assert sum(each.caller == "flood" for each in watched.engine.scheduler.running) == 7
    for _ in range(GUEST_STEPS + 1):
        watched.step()
    assert watched.decodes["flood"] >= 7
    assert len(watched.engine.scheduler.running) == 8


def test_nobody_rests_for_a_lower_priority():
    watched = Watched(pages=4096, budget=128, running=16, crowd=2)
    for _ in range(8):
        watched.submit("flood", 8, 60, priority=1)
    watched.submit("b", 8, 60)
    for _ in range(20):
        watched.step()
    assert watched.decodes == {"flood": 8, "b": 1}


def test_a_caller_alone_and_callers_with_equal_shares_never_rest():
    for callers in ("a", "abcd"):
        watched = Watched(pages=4096, budget=128, running=16, crowd=1)
        for _ in range(8):
            for caller in callers:
                watched.submit(caller, 8, 20)
        while watched.engine.has_work:
            watched.step()
        assert watched.longest_rest == 0


def test_pages_that_a_flood_holds_are_shared_too():
    watched = Watched(pages=120, page_size=4, budget=64, running=32)
    hog = Backlog(watched, "hog", 32, 60, 100)
    for _ in range(60):
        hog.fill()
        watched.step()
    assert watched.engine.table.available < 40
    number = watched.submit("other", 80, 4)
    before = watched.steps
    while number not in watched.ended:
        hog.fill()
        watched.step()
        assert watched.steps < before + 40
    assert watched.engine.scheduler.statistics.places_ceded > 0


def test_a_caller_does_not_take_a_place_from_one_that_has_no_more():
    watched = Watched(running=2, pages=200)
    first = [watched.submit("a", 4, 60), watched.submit("b", 4, 60)]
    for _ in range(5):
        watched.step()
    watched.submit("c", 4, 4)
    while not watched.ended & set(first):
        watched.step()
    assert watched.engine.scheduler.statistics.places_ceded == 0


def test_without_pages_the_latest_request_of_the_most_served_caller_gives_up_its_own():
    watched = Watched(pages=32, page_size=4, budget=32, running=8)
    hog = [watched.submit("hog", 16, 60) for _ in range(3)]
    for _ in range(6):
        watched.step()
    light = watched.submit("light", 8, 40)
    while light not in watched.ended:
        watched.step()
    requests = {each.number: each for each in watched.engine.scheduler.requests.values()}
    assert watched.engine.scheduler.statistics.preemptions > 0
    assert light in watched.ended and not watched.ended & set(hog)
    assert requests[hog[0]].statistics.preemptions == 0, "the first in rank always gets on"


def test_one_callers_long_prompt_does_not_hold_up_anothers():
    watched = Watched(pages=800, page_size=4, budget=16, running=8)
    watched.submit("a", 1600, 1)
    watched.step()
    numbers = [watched.submit("b", 16, 1), watched.submit("c", 16, 1)]
    for _ in range(5):
        watched.step()
    assert watched.ended == set(numbers)


def test_a_lower_priority_is_no_way_past_a_prompt_that_is_being_computed():
    watched = Watched(pages=800, page_size=4, budget=16, running=8)
    first = watched.submit("a", 160, 1)
    watched.step()
    late = watched.submit("b", 16, 1, priority=-1)
    while len(watched.ended) < 2:
        watched.step()
    assert watched.first[first] < watched.first[late]


def test_a_caller_alone_is_served_in_order_of_rank():
    def trace(callers: str) -> list[list[tuple[int, int, int]]]:
        watched = Watched(pages=24, budget=12, running=4)
        seen: list[list[tuple[int, int, int]]] = []
        see = watched.see
        watched.see = lambda chunks: (seen.append([(c.request.number, c.start, c.length) for c in chunks]), see(chunks))  # type: ignore[method-assign,func-returns-value,assignment]
        draw = np.random.default_rng(1)
        arrivals = deque((callers, int(draw.integers(1, 30)), int(draw.integers(1, 20))) for _ in range(20))
        while arrivals or watched.engine.has_work:
            if arrivals and draw.random() < 0.5:
                watched.submit(*arrivals.popleft(), priority=int(draw.integers(-1, 2)))
            watched.step()
        return seen

    assert trace("somebody") == trace("")


# ---------------------------------------------------------------------------------------------------- the counts


def asked(caller: str, tokens: int = 0) -> Request:
    return counting_request(0, 0, 1, max(1, tokens), caller=caller)


def serve(fairness: Fairness, caller: str, tokens: int) -> None:
    fairness.enter(caller)
    fairness.wait(caller)
    fairness.start(caller)
    fairness.charge(asked(caller), tokens)


def test_who_was_idle_has_saved_nothing_up():
    fairness = Fairness()
    serve(fairness, "early", 0)
    serve(fairness, "busy", 1000)
    fairness.enter("busy")
    fairness.wait("busy")
    for caller in ("early", "new"):
        fairness.enter(caller)
        fairness.wait(caller)
        assert fairness.served(caller) == 1000


def test_a_single_long_stream_is_no_credit_for_others():
    fairness = Fairness()
    serve(fairness, "stream", 10)
    serve(fairness, "busy", 1000)  # nobody waits any more
    fairness.enter("new")
    fairness.wait("new")
    assert fairness.served("new") == fairness.served("busy") >= 1000


def test_who_leaves_and_comes_back_is_not_forgiven():
    fairness = Fairness()
    fairness.enter("waits")
    fairness.wait("waits")
    serve(fairness, "flood", 500)
    fairness.leave("flood")
    for caller in ("flood", "new"):
        fairness.enter(caller)
        fairness.wait(caller)
    assert [fairness.served(caller) for caller in ("waits", "flood", "new")] == [0, 500, 0]


def test_a_token_is_charged_once():
    fairness = Fairness()
    serve(fairness, "a", 0)
    request = asked("a")
    for end in (10, 4, 10, 12):  # computed again after its pages were lost
        fairness.charge(request, end)
    assert fairness.served("a") == 12


def test_what_is_remembered_is_bounded_and_nothing_is_when_all_have_left():
    fairness = Fairness()
    serve(fairness, "stays", 1)
    for number in range(2 * MAX_REMEMBERED):
        serve(fairness, str(number), 10)
        fairness.leave(str(number))
    assert len(fairness._served) == MAX_REMEMBERED + 1
    fairness.leave("stays")
    assert not fairness._served and not fairness._gone
