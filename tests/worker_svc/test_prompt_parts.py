"""What is known of a prompt's tokens goes out in messages of a bounded size."""

from __future__ import annotations

import math

import pytest

from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.front.inference_servicer import PROMPT_PART_TOKENS, prompt_parts
from tandem.worker.front.streams import OutputStream, Tokens
from tandem.worker.front.validation import Delivery

LENGTH = 3 * PROMPT_PART_TOKENS + 7


def scored(others: int) -> OutputStream:
    """A prompt of LENGTH tokens with so many other tokens at each position behind the first."""
    rest = range(1, LENGTH)
    tops = [([place] * others, [0.5] * others, [1] * others) for place in rest] if others else []
    prompt = Tokens(logprobs=[float(-place) for place in rest], ranks=list(rest), others=tops)
    return OutputStream(1, Delivery(1, None), prompt=prompt)


@pytest.mark.parametrize("others", [0, 1, 64, 192])
def test_parts_are_bounded_and_together_the_prompt(others: int) -> None:
    options = pb.OutputOptions(prompt_logprobs=True, top_logprobs=others)
    parts = list(prompt_parts(pb.GenerateRequest(prompt_ids=range(LENGTH), output=options), scored(others)))
    assert max(len(part.ids) * max(1, others) for part in parts) <= 8192
    assert [each for part in parts for each in part.ids] == list(range(LENGTH))
    logprobs = [each for part in parts for each in part.logprobs]
    assert math.isnan(logprobs[0])
    assert logprobs[1:] == [-place for place in range(1, LENGTH)]
    assert [each for part in parts for each in part.ranks] == list(range(LENGTH))
    if others:
        firsts = [[*each.ids[:1]] for part in parts for each in part.top_logprobs]
        assert firsts == [[], *([place] for place in range(1, LENGTH))]
    else:
        assert not any(part.top_logprobs for part in parts)


def test_an_echo_has_ids_alone() -> None:
    request = pb.GenerateRequest(prompt_ids=range(LENGTH), output=pb.OutputOptions(echo=True))
    parts = list(prompt_parts(request, OutputStream(1, Delivery(1, None))))
    assert [each for part in parts for each in part.ids] == list(range(LENGTH))
    assert not any(part.logprobs or part.ranks or part.top_logprobs for part in parts)


@pytest.mark.parametrize("options", [pb.OutputOptions(top_logprobs=2), pb.OutputOptions(logprob_ids=[7])])
def test_a_prompt_of_one_token_has_an_empty_list_for_it(options: pb.OutputOptions) -> None:
    options.prompt_logprobs = True
    (part,) = prompt_parts(
        pb.GenerateRequest(prompt_ids=[5], output=options), OutputStream(1, Delivery(1, None), prompt=Tokens())
    )
    assert (list(part.ids), list(part.ranks)) == ([5], [0])
    assert math.isnan(*part.logprobs)
    assert list(part.top_logprobs) == [pb.TopLogprobs()]


def test_a_prompt_of_a_request_that_was_cancelled_has_as_many_ids_as_logprobs() -> None:
    options = pb.OutputOptions(prompt_logprobs=True, top_logprobs=1)
    tops = [([place], [0.5], [1]) for place in range(1, 1500)]
    prompt = Tokens(logprobs=[-1.0] * 1499, ranks=[1] * 1499, others=tops)
    request = pb.GenerateRequest(prompt_ids=range(LENGTH), output=options)
    parts = list(prompt_parts(request, OutputStream(1, Delivery(1, None), prompt=prompt)))
    assert sum(len(part.ids) for part in parts) == 1500
    for part in parts:
        assert len(part.ids) == len(part.logprobs) == len(part.ranks) == len(part.top_logprobs)
