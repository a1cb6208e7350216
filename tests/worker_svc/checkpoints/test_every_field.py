"""Every field of a checkpoint, changed: what is computed changes too, or the checkpoint is refused by the field's name,
or the field is in the table of neutral ones and the bits stay. What is served is what transformers computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.hugging_face_fields import CONFIG
from tandem.worker.checkpoints.hugging_face_fields.generation import GENERATION
from tandem.worker.checkpoints.hugging_face_fields.quantization import QUANTIZATION
from tandem.worker.checkpoints.hugging_face_fields.rope import ROPE
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED
from tandem.worker.checkpoints.meta import FIELDS as META_FIELDS
from tests.exhaustive import some
from tests.worker_svc.checkpoints.every_field import ABSENT, IDS, TOMORROW, Field, Served, others, served, write
from tests.worker_svc.checkpoints.test_packed import FORMATS, save_packed
from tests.worker_svc.checkpoints.tried_folders import CHOICES, FOLDERS, IDLE, PLAUSIBLE, UNLIKE
from tests.worker_svc.model.llama_folders import random_llama, save_meta
from tests.worker_svc.model.random_models import saved


def as_transformers(folder: Path, reference: Any) -> torch.Tensor | None:
    """Logits of what AutoModel makes of a folder's config with the reference's weights; None where it fails."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(reference.state_dict())
        model.train(False)
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([IDS])).logits[0].float()
    except Exception:  # whatever it does not take
        return None
    return logits


@pytest.mark.parametrize("name", some(FOLDERS, "llama", "mixtral", "gemma3_text", "gpt_oss", "glm4_moe", "smollm3"))
def test_every_field_of_a_config_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    kind, changes = FOLDERS[name]
    reference = saved(kind, tmp_path, **changes)
    (tmp_path / "generation_config.json").unlink()  # its ids would win
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    if name.startswith(("qwen", "exaone", "dots1", "afmoe")):
        config.pop("layer_types", None)  # or else the fields that they come from would not be looked at
        write(file, config)
    if name == "smollm3":
        config.pop("no_rope_layers")  # or else no_rope_layer_interval would not be looked at
        config.pop("layer_types")
        write(file, config)
    if name == "deepseek_v4":  # as published files have it
        config = {key: value for key, value in config.items() if key not in ("layer_types", "mlp_layer_types")}
        config |= {"rope_parameters": changes["rope_parameters"], "compress_ratios": [0, 4, 128, 4, 128, 0]}
        config["num_hash_layers"] = 2
        write(file, config)
    if name in (
        "deepseek_v32",
        "glm_moe_dsa",
        "exaone_moe",
    ):  # or else the numbers that the lists come from would not be looked at
        config = {key: value for key, value in config.items() if key not in ("mlp_layer_types", "indexer_types")}
        write(file, config)
    before = served(tmp_path)
    assert isinstance(before, Served), before
    table = CONFIG[name]
    idle = IDLE[""] | IDLE.get(name, set())
    compared = 0
    for key in [*dict.fromkeys([*config, *table]), TOMORROW]:
        rule = table.get(key)
        if rule is NEUTRAL:
            continue  # all at once, below
        current, field = config.get(key), Field(key, rule, before)
        for value in [*CHOICES.get(key, others(current)), *((None, ABSENT) if key in config else ())]:
            if value == current:
                continue
            write(file, config | {key: value})
            after = served(tmp_path)
            if value not in (None, ABSENT):
                field.check(value, after)
            if isinstance(after, Served) and key not in ("tie_word_embeddings", *UNLIKE.get(name, ())):
                theirs = as_transformers(tmp_path, reference)
                if theirs is not None:
                    compared += 1
                    ours = after.logits
                    message = f"{key} = {value!r}"
                    torch.testing.assert_close(ours, theirs[: len(ours)], atol=1e-4, rtol=0, msg=message)
        field.end(idle)
    assert compared > 8
    neutral = {key: PLAUSIBLE.get(key, 3) for key, rule in table.items() if rule is NEUTRAL}
    write(file, config | {key: 3 if value is ABSENT else value for key, value in neutral.items()})
    after = served(tmp_path)
    assert isinstance(after, Served) and after.same(before)
    write(file, config | neutral)
    theirs = as_transformers(tmp_path, reference)
    assert theirs is not None
    torch.testing.assert_close(after.logits, theirs, atol=1e-4, rtol=0)


JUNK = [
    [["x"]],
    [{}],
    {"a": [1]},
    "x",
    "",
    -1,
    0,
    10**30,
    10**400,
    0.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
]


@pytest.mark.parametrize("name", [*FOLDERS, "meta"])
def test_junk_in_any_field_is_refused_or_harmless_but_never_another_error(name: str, tmp_path: Path) -> None:
    if name == "meta":
        save_meta(random_llama(intermediate_size=160), tmp_path)
    else:
        kind, changes = FOLDERS[name]
        saved(kind, tmp_path, **changes)
    file = tmp_path / ("params.json" if name == "meta" else "config.json")
    config: dict[str, Any] = json.loads(file.read_text())
    table = META_FIELDS if name == "meta" else CONFIG[name]
    refused, place = 0, [*FOLDERS, "meta"].index(name)
    first = CONFIG[next(iter(FOLDERS))] if place else {}
    for key in [key for key, rule in table.items() if rule is USED]:
        # A field that the first kind has too gets a third of the junk here, and of the others' the rest.
        for value in JUNK[place % 3 :: 3] if key in first else JUNK:
            write(file, config | {key: value})
            try:
                open_checkpoint(tmp_path)
            except CheckpointError:
                refused += 1
    assert refused > 50


# proportional is Gemma 4's alone, whose folder is among `FOLDERS`.
@pytest.mark.parametrize("kind", [kind for kind in ROPE if kind != "proportional"])
def test_every_parameter_of_rope_is_used_or_refused(kind: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 500,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.5, 4.0, 5.0, 6.0, 8.0],
    }
    rope = {key: value for key, value in values.items() if key in ROPE[kind]}
    reference = saved("Llama", tmp_path, rope_parameters=dict(rope))
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    for spelling in ("rope_parameters", "rope_scaling"):
        config |= {"rope_parameters": ABSENT, "rope_scaling": ABSENT, spelling: rope}
        write(file, config)
        before = served(tmp_path)
        assert isinstance(before, Served), before
        every = {key for table in ROPE.values() for key in table} | {TOMORROW, "alpha", "mrope_section", "attn_factor"}
        for key in sorted(every):
            field = Field(key, ROPE[kind].get(key), before)
            alternatives = [1.5, 3, False, "other"] if key not in rope else others(rope[key])
            if key in ("rope_type", "type"):
                alternatives = [*(set(ROPE) - {kind}), "longrope"]
            for value in alternatives:
                write(file, config | {spelling: rope | {key: value}})
                after = served(tmp_path)
                field.check(value, after)
                if "dynamic" in (kind, value):
                    continue  # which is another rule here, on purpose
                theirs = None if isinstance(after, str) else as_transformers(tmp_path, reference)
                if theirs is not None and isinstance(after, Served):
                    torch.testing.assert_close(after.logits, theirs, atol=1e-4, rtol=0, msg=f"{key} = {value!r}")
            field.end({"mscale", "mscale_all_dim"})  # one of the two alone is nothing to transformers either


def test_every_field_of_a_generation_config_is_used_neutral_or_refused(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    config = {"bos_token_id": 1, "eos_token_id": [2], "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.1}
    config |= {"repetition_penalty": 1.1, "do_sample": True}
    write(file, config)
    before = served(tmp_path)
    assert isinstance(before, Served), before
    known = {key for key in transformers.GenerationConfig().to_dict() if not key.startswith("_")}
    assert known <= GENERATION.keys(), "transformers has fields that are in no table"
    for key in [*GENERATION, TOMORROW]:
        field = Field(key, GENERATION.get(key), before)
        for value in others(config.get(key)):
            write(file, config | {key: value})
            field.check(value, served(tmp_path))
        field.end()


@pytest.mark.parametrize("name", some(["gptq", "gptq v2", "awq"], "gptq", "awq"))
def test_every_field_of_a_quantization_config_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    settings = FORMATS[name]
    save_packed(tmp_path, settings)
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    before = served(tmp_path)
    assert isinstance(before, Served), before
    table = QUANTIZATION[settings["quant_method"]]
    for key in [*table, TOMORROW]:
        if key == "desc_act":
            continue  # g_idx says whether the order is the plain one
        field = Field(key, table.get(key), before)
        choices = {"quant_method": ["bitsandbytes", "awq", "gptq"], "checkpoint_format": ["gptq", "gptq_v2", "marlin"]}
        for value in choices.get(key, others(settings.get(key))):
            if value != settings.get(key, "gptq"):
                write(file, config | {"quantization_config": settings | {key: value}})
                field.check(value, served(tmp_path))
        field.end()


@pytest.mark.parametrize("style", ["meta", "scaled", "mistral"])
def test_every_field_of_params_json_is_used_neutral_or_refused(style: str, tmp_path: Path) -> None:
    params: dict[str, dict[str, Any]] = {
        "meta": {"multiple_of": 20},
        "scaled": {"multiple_of": 20, "use_scaled_rope": True, "rope_scaling_factor": 16.0, "rope_theta": 1637.0},
        "mistral": {"multiple_of": None, "hidden_dim": 160, "head_dim": 12, "sliding_window": 7},
    }
    save_meta(random_llama(intermediate_size=160), tmp_path, **params[style])
    file = tmp_path / "params.json"
    config: dict[str, Any] = json.loads(file.read_text())
    before = served(tmp_path)
    assert isinstance(before, Served), before
    for key in [*META_FIELDS, TOMORROW]:
        field = Field(key, META_FIELDS.get(key), before)
        for value in others(config.get(key)):
            write(file, config | {key: value})
            field.check(value, served(tmp_path))
        field.end()
