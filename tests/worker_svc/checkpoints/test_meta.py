"""Meta folders: what is read from them, and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_parts.rope import RopeScaling
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.model.llama_folders import random_llama, save_meta
from tests.worker_svc.model.random_models import assert_logits_agree, saved

WEIGHTS = "consolidated.00.pth"
WQ = "layers.1.attention.wq.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_meta(random_llama(intermediate_size=160), tmp_path / "model")


def edit(folder: Path, **changes: Any) -> None:
    """Sets keys of params.json; None takes one away."""
    params = json.loads((folder / "params.json").read_text()) | changes
    (folder / "params.json").write_text(json.dumps({key: value for key, value in params.items() if value is not None}))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the dictionary in the weights file."""
    state = torch.load(folder / WEIGHTS, weights_only=True)
    change(state)
    torch.save(state, folder / WEIGHTS)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_every_tensor_comes_once_with_its_canonical_name_and_shape(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    state = torch.load(folder / WEIGHTS, weights_only=True)
    came = {name: tensor.clone() for name, tensor in checkpoint.tensors()}
    assert {name: tuple(tensor.shape) for name, tensor in came.items()} == checkpoint.config.tensor_shapes()
    assert torch.equal(came["layers.2.mlp.up"], state["layers.2.feed_forward.w3.weight"])
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in state.values())
    assert (checkpoint.format, checkpoint.dtype) == ("meta", torch.float32)


def test_releasing_a_tensor_leaves_it_readable(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name, tensor in checkpoint.tensors():
        before = tensor.clone()
        checkpoint.release(tensor)
        assert torch.equal(tensor, before), name


def test_q_and_k_come_with_their_pairs_half_a_head_apart(folder: Path) -> None:
    stored = torch.load(folder / WEIGHTS, weights_only=True)[WQ]
    came = dict(open_checkpoint(folder).tensors())["layers.1.attention.q"]
    for head in range(5):
        ours, theirs = came[head * 12 : head * 12 + 12], stored[head * 12 : head * 12 + 12]
        for pair in range(6):
            assert torch.equal(ours[pair], theirs[2 * pair])
            assert torch.equal(ours[pair + 6], theirs[2 * pair + 1])


@pytest.mark.parametrize(
    ("dim", "multiple_of", "multiplier", "hidden"),
    [
        (4096, 256, None, 11008),  # Llama 2 7B
        (5120, 256, None, 13824),  # Llama 2 13B
        (8192, 4096, 1.3, 28672),  # Llama 2 and 3 70B
        (4096, 1024, 1.3, 14336),  # Llama 3 8B
        (2048, 256, 1.5, 8192),  # Llama 3.2 1B
        (3072, 256, 1.0, 8192),  # Llama 3.2 3B
    ],
)
def test_the_feed_forward_size_follows_as_in_published_models(
    dim: int, multiple_of: int, multiplier: float | None, hidden: int, folder: Path
) -> None:
    edit(folder, dim=dim, n_heads=dim // 64, n_kv_heads=None, multiple_of=multiple_of, ffn_dim_multiplier=multiplier)
    # The weights no longer fit; the first matrix that shows it says what would.
    rewrite(folder, lambda state: state.update(stand_ins(dim)))
    problem = f"feed_forward.w1.weight has the shape [160, 60], but the config makes it [{hidden}, {dim}]"
    assert problem in refusal(folder)


def stand_ins(dim: int) -> dict[str, torch.Tensor]:
    """Tensors of the right shapes up to the first feed-forward matrix."""
    big, flat = torch.zeros(1).expand(97, dim), torch.zeros(dim)
    square = torch.zeros(dim, dim, dtype=torch.bfloat16)
    attention = {f"layers.0.attention.{name}.weight": square for name in ("wq", "wk", "wv", "wo")}
    norms = {f"layers.0.{name}.weight": flat for name in ("attention_norm", "ffn_norm")}
    return {"tok_embeddings.weight": big.contiguous(), "output.weight": big.contiguous(), **attention, **norms}


def test_a_vocabulary_of_minus_one_is_read_off_the_embedding(folder: Path) -> None:
    edit(folder, vocab_size=-1)
    assert open_checkpoint(folder).config.vocab_size == 97


def test_absent_kv_heads_are_as_many_as_heads(folder: Path) -> None:
    edit(folder, n_kv_heads=None)
    assert open_checkpoint(folder).config.num_kv_heads == 5


@pytest.mark.parametrize(
    ("changes", "context_length"),
    [({}, 4096), ({"rope_theta": 500000.0}, 8192), ({"rope_theta": 500000.0, "use_scaled_rope": True}, 131072)],
)
def test_an_absent_context_length_is_that_of_the_generation(
    changes: dict[str, Any], context_length: int, folder: Path
) -> None:
    edit(folder, max_seq_len=None, **changes)
    assert open_checkpoint(folder).config.context_length == context_length


def test_scaled_rope_has_llama_3_1s_constants_unless_a_factor_is_given(folder: Path) -> None:
    edit(folder, use_scaled_rope=True)
    assert open_checkpoint(folder).config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    edit(folder, rope_scaling_factor=32.0)
    assert open_checkpoint(folder).config.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    edit(folder, use_scaled_rope=False)
    assert "rope_scaling_factor is set, but use_scaled_rope is not" in refusal(folder)
    edit(folder, rope_scaling_factor=None)
    assert open_checkpoint(folder).config.rope_scaling is None


def test_the_fields_of_mistrals_own_files_are_used(tmp_path: Path) -> None:
    """The same weights as transformers' Mistral, whose heads are not dim / n_heads and whose window is short."""
    reference = saved("Mistral", tmp_path / "hf", sliding_window=7)
    folder = save_meta(reference, tmp_path / "meta", multiple_of=None, hidden_dim=80, head_dim=12, sliding_window=7)
    model = load_transformer(open_checkpoint(folder), "cpu", torch.float32)
    assert_logits_agree(model, reference, 40)
    edit(folder, sliding_window=None)
    assert open_checkpoint(folder).config.architecture != "mistral"
    edit(folder, rope_theta=None)
    assert "rope_theta is missing" in refusal(folder)


def test_old_tables_of_frequencies_are_ignored(folder: Path) -> None:
    rewrite(folder, lambda state: state.update({"rope.freqs": torch.ones(6)}))
    assert "rope.freqs" not in dict(open_checkpoint(folder).tensors())


@pytest.mark.parametrize("how", ["absent", "the same memory"])
def test_an_output_that_is_not_stored_is_the_embedding(how: str, folder: Path) -> None:
    if how == "absent":
        rewrite(folder, lambda state: state.pop("output.weight"))
    else:
        rewrite(folder, lambda state: state.update({"output.weight": state["tok_embeddings.weight"]}))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.tie_embeddings
    assert "output" not in dict(checkpoint.tensors())


def test_special_ids_are_those_of_llama_2s_tokenizer(folder: Path, shared_data: Path) -> None:
    shutil.copy(shared_data / "formats" / "llama2" / "tokenizer.model", folder)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (1, (2,))


def test_special_ids_are_those_of_llama_3s_tokenizer(tmp_path: Path, shared_data: Path) -> None:
    folder = save_meta(random_llama(intermediate_size=160, vocab_size=128256), tmp_path / "llama3")
    shutil.copy(shared_data / "formats" / "llama3" / "tokenizer.model", folder)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (128000, (128001, 128008, 128009))


def test_without_a_tokenizer_no_special_id_is_known(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (None, ())


@pytest.mark.parametrize("content", [b"", b"\n\xff\xff", b"\n\x05ab", b"no ranks here\n", b"IQ== one\n"])
def test_a_broken_tokenizer_is_refused(content: bytes, folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    assert "tokenizer.model" in refusal(folder)


def test_a_tokenizer_of_another_vocabulary_is_refused(folder: Path, shared_data: Path) -> None:
    shutil.copy(shared_data / "formats" / "llama3" / "tokenizer.model", folder)
    assert "128000" in refusal(folder)


PARAM_LIES: list[tuple[dict[str, Any], str]] = [
    ({"dim": None}, "dim is missing"),
    ({"dim": 0}, "dim"),
    ({"dim": 61}, "dim"),
    ({"dim": "60"}, "dim"),
    ({"dim": 120}, "layers.0.attention_norm.weight"),
    ({"n_heads": 0}, "n_heads"),
    ({"n_heads": 7}, "n_heads"),
    ({"n_heads": 60, "n_kv_heads": 60}, "head_dim"),
    ({"n_kv_heads": 0}, "n_kv_heads"),
    ({"n_kv_heads": 2}, "n_kv_heads"),
    ({"n_kv_heads": 1}, "attention.wk"),
    ({"n_layers": 0}, "n_layers"),
    ({"n_layers": 2}, "layers.2"),
    ({"n_layers": 4}, "layers.3"),
    ({"n_layers": None}, "n_layers"),
    ({"vocab_size": 98}, "tok_embeddings.weight has the shape [97, 60], but the config makes it [98, 60]"),
    ({"vocab_size": 0}, "vocab_size"),
    ({"multiple_of": 0}, "multiple_of"),
    ({"multiple_of": 161}, "feed_forward.w1"),
    ({"ffn_dim_multiplier": 2.0}, "feed_forward.w1"),
    ({"ffn_dim_multiplier": -1.0}, "ffn_dim_multiplier"),
    ({"ffn_dim_multiplier": float("nan")}, "ffn_dim_multiplier"),
    ({"norm_eps": 0.0}, "norm_eps"),
    ({"rope_theta": float("inf")}, "rope_theta"),
    ({"rope_theta": -1.0}, "rope_theta"),
    ({"max_seq_len": 0}, "max_seq_len"),
    ({"use_scaled_rope": "yes"}, "use_scaled_rope"),
    ({"use_scaled_rope": True, "rope_scaling_factor": 0.0}, "rope_scaling_factor"),
    ({"moe": {"num_experts": 8}}, "moe"),
    ({"quantization_args": {"scheme": "int4"}}, "quantization_args"),
    ({"rope_high_freq_factor": 2.0}, "rope_high_freq_factor"),
    ({"sliding_window": 0}, "sliding_window"),
    ({"sliding_window": [8, 0, 8]}, "sliding_window"),
    ({"hidden_dim": 192}, "hidden_dim is 192, but multiple_of and ffn_dim_multiplier make it 160"),
    ({"head_dim": 10}, "attention.wq"),
    ({"rope_scaling": {"factor": 8.0}}, "rope_scaling"),
    ({"qk_norm": True}, "qk_norm"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"n_local_experts": 8}, "n_local_experts"),
    ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow (1) is not known"),
]


@pytest.mark.parametrize(("changes", "named"), PARAM_LIES, ids=[named for _, named in PARAM_LIES])
def test_params_that_lie_are_refused_by_name(changes: dict[str, Any], named: str, folder: Path) -> None:
    edit(folder, **changes)
    assert named in refusal(folder)


STATE_FAULTS: list[tuple[Callable[[dict[Any, Any]], object], str]] = [
    (lambda s: s.pop(WQ), f"tensor {WQ} is missing"),
    (lambda s: s.pop("tok_embeddings.weight"), "tok_embeddings.weight"),
    (lambda s: s.update({"layers.0.extra": torch.ones(1)}), "layers.0.extra"),
    (lambda s: s.update({WQ: torch.ones(60, 61)}), f"{WQ} has the shape [60, 61], but the config makes it [60, 60]"),
    (lambda s: s.update({WQ: torch.ones(60, 60, dtype=torch.int8)}), "int8"),
    (lambda s: s.update({WQ: torch.ones(60, 60, dtype=torch.float64)}), "float64"),
    (lambda s: s.update({WQ: torch.ones(1).expand(60, 60)}), "contiguous"),
    (lambda s: s.update({WQ: torch.eye(60).to_sparse()}), "dense"),
    (lambda s: s.update({"epoch": 3}), "epoch is a int"),
    (lambda s: s.update({7: torch.ones(1)}), "7"),
]


@pytest.mark.parametrize(("fault", "named"), STATE_FAULTS, ids=[named for _, named in STATE_FAULTS])
def test_tensors_that_do_not_fit_the_params_are_refused_by_name(
    fault: Callable[[dict[Any, Any]], object], named: str, folder: Path
) -> None:
    rewrite(folder, fault)
    message = refusal(folder)
    assert WEIGHTS in message
    assert named in message


@pytest.mark.parametrize("length", [0, 3, 100, 20_000, -1, -30])
def test_a_truncated_file_is_refused(length: int, folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:length])
    assert WEIGHTS in refusal(folder)


class Intruder:
    """Unpickles into a call."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return Path.touch, (self.witness,)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "it ran"
    torch.save({"tok_embeddings.weight": Intruder(witness)}, folder / WEIGHTS)
    assert "something other than weights" in refusal(folder)
    (folder / WEIGHTS).write_bytes(pickle.dumps(Intruder(witness)))
    assert WEIGHTS in refusal(folder)
    assert not witness.exists()


@pytest.mark.parametrize("content", [[torch.ones(2)], torch.ones(2), 7, {}, {"model": {"tok": torch.ones(2)}}])
def test_an_archive_that_holds_no_dictionary_of_tensors_is_refused(content: Any, folder: Path) -> None:
    torch.save(content, folder / WEIGHTS)
    assert WEIGHTS in refusal(folder)


def test_the_old_archive_format_is_refused(folder: Path) -> None:
    state = torch.load(folder / WEIGHTS, weights_only=True)
    torch.save(state, folder / WEIGHTS, _use_new_zipfile_serialization=False)
    assert "not an archive of torch.save" in refusal(folder)


def test_absent_weights_are_named(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert f"{WEIGHTS}: no such file" in refusal(folder)


def test_a_second_shard_alone_is_not_enough(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "consolidated.01.pth")
    assert f"{WEIGHTS}: no such file; there is consolidated.01.pth" in refusal(folder)


def cut(folder: Path, shards: int, embedding: int, output: int = 0) -> None:
    """Cuts the weights as a tensor-parallel run does; the embedding and the output along these dimensions."""
    whole = torch.load(folder / WEIGHTS, weights_only=True)
    along = {"attention.wo.weight": 1, "feed_forward.w2.weight": 1, "tok_embeddings.weight": embedding}
    along |= {"output.weight": output}
    states: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    for name, tensor in whole.items():
        dimension = next((d for suffix, d in along.items() if name.endswith(suffix)), 0)
        parts = [tensor] * shards if tensor.dim() == 1 else tensor.chunk(shards, dimension)
        for state, part in zip(states, parts, strict=True):
            state[name] = part.clone()
    for number, state in enumerate(states):
        torch.save(state, folder / f"consolidated.{number:02d}.pth")


@pytest.mark.parametrize("embedding", [0, 1], ids=["Llama 3, by vocabulary", "Llama 2, by width"])
@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("vocab_size", [96, -1])
def test_shards_give_what_one_file_gives(shards: int, embedding: int, vocab_size: int, tmp_path: Path) -> None:
    reference = random_llama(
        vocab_size=96, hidden_size=64, num_attention_heads=8, num_key_value_heads=4, intermediate_size=176
    )
    whole = save_meta(reference, tmp_path / "whole")
    expected = {name: tensor.clone() for name, tensor in open_checkpoint(whole).tensors()}
    parts = save_meta(reference, tmp_path / "parts", vocab_size=vocab_size)
    cut(parts, shards, embedding)
    checkpoint = open_checkpoint(parts)
    assert checkpoint.config == open_checkpoint(whole).config
    came = dict(checkpoint.tensors())
    assert came.keys() == expected.keys()
    for name, tensor in came.items():
        assert torch.equal(tensor, expected[name]), name
        checkpoint.release(tensor)
        assert torch.equal(tensor, expected[name]), name


def test_a_missing_shard_is_named(folder: Path) -> None:
    for number in (1, 3):
        shutil.copy(folder / WEIGHTS, folder / f"consolidated.{number:02d}.pth")
    assert "consolidated.02.pth: no such file; there is consolidated.00.pth" in refusal(folder)


def test_shards_that_do_not_go_together_are_refused_by_name(folder: Path) -> None:
    cut(folder, 5, 1)
    (folder / "consolidated.04.pth").unlink()
    assert "layers.0.attention.wq.weight has the shape [48, 60], but the config makes it [60, 60]" in refusal(folder)
    state = torch.load(folder / "consolidated.03.pth", weights_only=True)
    torch.save({name: tensor for name, tensor in state.items() if name != WQ}, folder / "consolidated.03.pth")
    assert f"consolidated.03.pth: tensor {WQ} is missing, which consolidated.00.pth has" in refusal(folder)
    torch.save(state | {"extra": torch.ones(1)}, folder / "consolidated.03.pth")
    assert "consolidated.03.pth: has the tensor extra" in refusal(folder)
    torch.save(state | {WQ: state[WQ].half()}, folder / "consolidated.03.pth")
    assert f"consolidated.03.pth: tensor {WQ} is torch.float16" in refusal(folder)
