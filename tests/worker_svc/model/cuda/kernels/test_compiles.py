"""The compiler, which refuses more than the interpreter, takes every kernel; and what it makes of them is as meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("compile_for_hopper.py")


@pytest.mark.slow
def test_every_kernel_compiles_for_a_hopper_card(repository: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(repository), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    every = {"_store", "_attend", "_prefill", "_add_norm", "_swiglu", "_swiglu_float8"}
    every |= {"_survey", "_decide", "_add_at"}
    every |= {"_product", "_quantized_product", "_add_up", "_plain", "_rows_to_float8"}
    every |= {"_enter", "_recur", "_leave", "_keep", "_decays", "_gated_convolution"}
    every |= {"_route", "_arrange", "_weigh", "_expert_product", "_words_product", "_words_expert_product"}
    assert {k["kernel"] for k in kernels} == every
    # Decodes, drafts and prefills alike: that is what makes their bits the same.
    attend = [k for k in kernels if k["kernel"] == "_attend" and k["reproducible"]]
    assert sorted(k["stored"] for k in attend) == ["bfloat16", "int8"]
    # A tile's scales are one copy a thread, like a tile's page; the loop is there three times, with its beginnings.
    assert all(k["narrow_copies"] <= 10 for k in attend), attend
    for kernel in kernels:
        assert kernel["shared"] <= 227 << 10, kernel  # what a program may have
        if kernel["kernel"] in ("_attend", "_quantized_product", "_words_product"):
            assert kernel["counts"] == 1, "a program counts itself behind a barrier, when all its threads have stored"
        if kernel["kernel"] in ("_prefill", "_attend", "_product", "_expert_product"):
            assert kernel["wgmma"] or (kernel["mma"] and not kernel["reproducible"]), kernel
            assert kernel["wide_loads"], kernel


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--all"]], ids=["the least memory", "--all"])
def test_every_card_that_is_served_takes_what_it_is_given(
    flags: list[str], repository: Path, request: pytest.FixtureRequest
) -> None:
    """Heads of 256 numbers fit, and products, also of experts, where a program has the least shared memory; from Hopper
    on kernels look ahead, at weights alone, before they wait. What is compiled is kept for the next time."""
    assert request.config.cache is not None
    environment = os.environ | {
        "PYTHONPATH": str(repository),
        "TRITON_CACHE_DIR": str(request.config.cache.mkdir("triton")),
    }
    environment.pop("TRITON_INTERPRET", None)
    program = PROGRAM.with_name("compile_for_cards.py")
    command = [sys.executable, program, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    hopper, ampere, *cards = [json.loads(line) for line in done.stdout.splitlines()]
    assert hopper["dependents"].keys() == ampere["dependents"].keys() == {"_product", "_add_norm", "_swiglu"}
    for name, about in hopper["dependents"].items():
        assert about["waits"] and not about["loads"] and bool(about["fetches"]) == (name == "_product"), about
    assert not any(about["waits"] for about in ampere["dependents"].values())
    every = [[8, 0], [8, 6], [8, 9], [9, 0], [10, 0], [12, 0]]
    assert sorted(card["capability"] for card in cards) == (every if flags else [[8, 6]])
    for card in cards:
        assert card["shared"].keys() >= {"_store", "_attend", "_prefill", "_store_latents", "_head_product"}
        assert card["shared"].keys() >= {"_index_scores", "_choose_places"}
        assert card["shared"].keys() >= {"_product", "_expert_product", "_arrange"}
        if flags:
            assert card["shared"].keys() >= {"_words_expert_product", "_enter", "_recur", "_leave", "_keep"}
        assert max(card["shared"].values()) <= card["room"], card
        assert card["shared"]["_attend"] > 64 << 10, "tiles are on their way while one is multiplied"
