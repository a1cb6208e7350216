"""What stays in float32 in models of 16 bits: routers that are stored in it, and norms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model import linear
from tandem.worker.model.cpu import native
from tandem.worker.model.linear import FloatRows, PlainWeight
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.checkpoints.beside_llama_cpp import absent, logits_of_llama_cpp
from tests.worker_svc.model.llama_folders import PAGE_SIZE, new_cache, new_states
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.sharp_routers import KINDS, logits_of, sharp
from tests.worker_svc.model.tiny_models import MODELS

NEAR, FAR = 0.1, 0.5  # standard deviations: what 16 bits round, and what another expert says
WAYS = ["compiled", "AVX2", "torch"]


def loaded(path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """The model in bf16, by the products of such a processor, or by torch's."""
    if way == "AVX2":
        monkeypatch.setattr(native, "wide_serves", lambda dtype: False)
        monkeypatch.setattr(linear, "onednn_serves", lambda device, dtype: False)
    if way == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
    operations = TorchOperations() if way == "torch" else None
    return load_transformer(open_checkpoint(path), "cpu", torch.bfloat16, operations=operations)


def routers(model: Transformer) -> list[torch.nn.Module]:
    return [each.router.weights[0] for each in model.modules() if isinstance(each, MixtureOfExperts)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_experts_that_float32_tells_apart_are_chosen_as_in_float64(
    kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = sharp(kind, tmp_path, torch.bfloat16, lambda router: router)
    model = loaded(case.path, way, monkeypatch)
    assert case.away(logits_of(model, case.ids)) < NEAR
    if way == "AVX2":
        assert isinstance(routers(model)[0], FloatRows)
    if way == "torch":
        assert isinstance(routers(model)[0], PlainWeight)
    rounded = sharp(kind, tmp_path, torch.bfloat16, lambda router: router.bfloat16())
    assert rounded.away(logits_of(loaded(rounded.path, way, monkeypatch), case.ids)) > FAR


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_router_in_float32_do_not_depend_on_company(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = sharp("sigmoid", tmp_path, torch.bfloat16, lambda router: router)
    model = loaded(case.path, way, monkeypatch)
    cache = new_cache(model, 8 * PAGE_SIZE, torch.bfloat16)
    assert choose_padding(ModelRunner(model, cache, new_states(model, cache)))


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_chooses_the_same_experts(kind: str, tmp_path: Path) -> None:
    if problem := absent():
        pytest.skip(problem)
    case = sharp(kind, tmp_path, torch.bfloat16, lambda router: router)
    assert case.away(logits_of_llama_cpp(case.path, case.ids)) < NEAR


@pytest.mark.parametrize("name", ["glm4 moe", "deepseek v3", "ernie4_5 moe", "nemotron 3", "qwen3 moe"])
def test_what_transformers_multiplies_in_float32_is_kept_so_and_what_is_stored_so_too(
    name: str, tmp_path: Path
) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes).bfloat16().save_pretrained(tmp_path)
    wide = name != "qwen3 moe"  # whose router is of the model's dtype there
    assert {_dtype(each) for each in _loaded(tmp_path)} == {torch.float32 if wide else torch.bfloat16}
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    names = [each for each in stored if each.endswith((".gate.weight", ".moe_statics.weight"))]
    save_file(stored | {each: stored[each].float() for each in names}, file, {"format": "pt"})
    assert {_dtype(each) for each in _loaded(tmp_path)} == {torch.float32}


def _loaded(folder: Path) -> list[torch.nn.Module]:
    operations = TorchOperations()
    return routers(load_transformer(open_checkpoint(folder), "cpu", torch.bfloat16, operations=operations))


def _dtype(weight: torch.nn.Module) -> torch.dtype:
    return next(iter(weight.state_dict().values())).dtype


def test_norms_that_multiply_by_1_and_a_weight_are_not_rounded(tmp_path: Path) -> None:
    theirs = saved("Gemma", tmp_path, **MODELS["gemma"][1]).bfloat16()
    theirs.save_pretrained(tmp_path)
    ours = load_transformer(open_checkpoint(tmp_path), "cpu", torch.bfloat16, operations=TorchOperations())
    exact = theirs.model.norm.weight.float() + 1
    assert not torch.equal(exact.bfloat16().float(), exact)
    assert torch.equal(ours.norm.weight, exact)
