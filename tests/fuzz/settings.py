"""Models of every architecture with settings drawn by chance (`drawn_models.py`). Logits are those of transformers,
whole, in chunks, while answering and by ranks, from the folder as transformers writes it or as older or terser files
are, and from what `tandem convert` makes of it."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.convert.pieces import ConvertError
from tandem.worker.convert.run import convert
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.transformer import Transformer
from tests.fuzz.drawn_models import Model, drawn
from tests.fuzz.drawn_rope import PARTIAL_BY_LAYER
from tests.fuzz.draws import Drawn
from tests.fuzz.shapes import NEAR, NEAR_WITH_STATES, far, in_context, logits_of
from tests.worker_svc.model.llama_folders import logits_in_chunks, new_cache, new_states, some_ids, step
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.ranks_in_threads import in_threads

ANSWER = 64  # tokens
CONTEXT = 96  # of `SIZES`
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Of lightning attention, which transformers stores, too; a table of 16 bits is another one.
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")


# What a terse file says even so, and lists that it leaves out where they were not drawn, and shorter ways to say them.
REQUIRED = ("size", "heads", "layers", "eps", "epsilon", "dim")
LISTS = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types", "indexer_types")
PATTERNS = ("sliding_window_pattern", "full_attn_idxs", "index_topk_freq", "index_skip_topk_offset")


def _respelled(model: Model, folder: Path) -> None:
    """Writes the config in another way."""
    file = folder / "config.json"
    config: Drawn = json.loads(file.read_text())
    rope = config.get("rope_parameters")
    # In Cohere 2 with experts, scaling is said in the newer way alone.
    newer_alone = rope is None or "full_attention" in rope or "main" in rope
    newer_alone |= model.kind in ("Cohere2Moe", *PARTIAL_BY_LAYER)
    if model.spelling == "older" and not newer_alone:
        del config["rope_parameters"]
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = {"type": kind, "rope_type": kind} | rope if kind != "default" else None
        config["torch_dtype"] = config.pop("dtype")
    if model.spelling == "terse":
        fields = getattr(transformers, f"{model.kind}Config").__dataclass_fields__
        config = {
            key: value
            for key, value in config.items()
            if (key not in fields or value != fields[key].default or key.endswith(REQUIRED))
            and (key not in LISTS or model.changes.get(key) is not None)
        }
        config |= {key: model.changes[key] for key in PATTERNS if model.changes.get(key) is not None}
    file.write_text(json.dumps(config))


def _made(model: Model, folder: Path) -> Any:
    """transformers' model, in float32, and its folder."""
    theirs = saved(model.kind, folder, **model.changes)
    named = json.loads((folder / "config.json").read_text())["architectures"]
    if model.dtype != "float32":
        dtype = DTYPES[model.dtype]
        whole = theirs.state_dict()
        stored = {name: tensor.to(dtype) for name, tensor in whole.items()}
        rounded = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(COMPUTED)}
        theirs.load_state_dict(whole | rounded)
        theirs.config.dtype = dtype
        theirs.save_pretrained(folder, state_dict=stored)
        theirs.config.dtype = torch.float32
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": named}))
    if model.spelling:
        _respelled(model, folder)
        theirs = _read_again(folder, theirs)
    return theirs


def _read_again(folder: Path, theirs: Any) -> Any:
    """What transformers makes of the config in the folder, with the same numbers."""
    config = transformers.AutoConfig.from_pretrained(folder)
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
    again = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **ways)
    again.load_state_dict(theirs.state_dict())
    again.train(False)
    return again


def loaded(path: Path, length: int, ranks: Ranks = ALONE) -> Transformer:
    checkpoint = open_checkpoint(path)
    config = in_context(checkpoint.config, length)
    return load_transformer(checkpoint, "cpu", torch.float32, config=config, ranks=ranks)


def compared(model: Model, folder: Path, ends: Counter[str]) -> str:
    """Says what is wrong with such a model; "" if nothing is."""
    theirs = _made(model, folder)
    ours = loaded(folder, model.length)
    near = NEAR if ours.config.recurrence is None else NEAR_WITH_STATES
    ids = some_ids(model.changes["vocab_size"], model.length)
    whole = logits_in_chunks(ours, ids, [len(ids)])
    problems = [far(whole, theirs, ids, near)]
    problems += [
        f"other bits in chunks {chunks}"
        for chunks in ([17, 1], [16, 5])
        if not torch.equal(logits_in_chunks(ours, ids, chunks), whole)
    ]
    if model.also == "answers" and ours.config.context_length >= CONTEXT:
        problems.append(_answers(ours, theirs, ids[:9], near))
    elif model.also == "ranks":
        problems.append(_ranks(folder, theirs, ids, near, ends))
    elif model.also in ("gguf", "hugging_face"):
        problems.append(_converted(model, folder, theirs, ids, near, ends))
    return "; ".join(filter(None, problems))


def _ranks(folder: Path, theirs: Any, ids: list[int], near: float, ends: Counter[str]) -> str:
    """Compares what ranks compute together, as many as can share the model: on each the same bits, in chunks too."""
    config = open_checkpoint(folder).config
    size = next((size for size in (4, 3, 2) if _shared_by(size, config)), 1)
    ends[f"by {size} ranks"] += 1
    if size == 1:
        return ""

    def computed(ranks: Ranks) -> torch.Tensor:
        part = loaded(folder, len(ids), ranks)
        whole = logits_in_chunks(part, ids, [len(ids)])
        return torch.stack((whole, logits_in_chunks(part, ids, [17, 1])))

    (whole, chunks), *others = in_threads(size, computed)
    if not torch.equal(whole, chunks):
        return f"{size} ranks: other bits in chunks"
    if any(not torch.equal(other[0], whole) for other in others):
        return f"{size} ranks: other bits on another"
    problem = far(whole, theirs, ids, near)
    return problem and f"{size} ranks: {problem}"


def _shared_by(size: int, config: ModelConfig) -> bool:
    try:
        Ranks(0, size).share(config)
    except ConfigError:
        return False
    return True


def _answers(ours: Transformer, theirs: Any, prompt: list[int], near: float) -> str:
    """Compares a greedy answer, token by token, with what transformers has behind each of its tokens."""
    answer, pages = list(prompt), list(range(CONTEXT // 16))
    cache = new_cache(ours, CONTEXT)
    states = new_states(ours, cache)
    rows = [step(ours, cache, [(answer, 0, pages)], states=states)]
    for _ in range(ANSWER - 1):
        answer.append(int(rows[-1][-1].argmax()))
        rows.append(step(ours, cache, [(answer[-1:], len(answer) - 1, pages)], states=states))
    problem = far(torch.cat(rows), theirs, answer, near)
    return problem and f"answer: {problem}"


def _converted(model: Model, folder: Path, theirs: Any, ids: list[int], near: float, ends: Counter[str]) -> str:
    """Compares what `tandem convert` makes of the folder, and in transformers, where that is a folder too."""
    target = folder / ("made.gguf" if model.also == "gguf" else "made")
    try:
        convert(folder, target, model.also, "float32", lambda done, total: None)
    except (ConvertError, CheckpointError) as error:
        ends[f"{model.kind} as {model.also}: {str(error).partition(': ')[2] or error}"] += 1
        return ""
    ours = loaded(target, model.length)
    problem = far(logits_in_chunks(ours, ids, [len(ids)]), theirs, ids, near)
    if not problem and model.also == "hugging_face":
        again = transformers.AutoModelForCausalLM.from_pretrained(
            target, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
        )
        problem = far(logits_of(again, ids), theirs, ids, near)
    return problem and f"converted to {model.also}: {problem}"


def fuzz(minutes: float, seed: int, first: int = 1, most: int | None = None) -> Counter[str]:
    """Compares models, from number `first` on; what was found, each with how often."""
    found: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    until, number = time.monotonic() + minutes * 60, first
    while time.monotonic() < until and (most is None or number < first + most):
        model = drawn(Random(f"{seed} settings {number}"))
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = compared(model, Path(folder), ends)
                end = "differs" if problem else "equal"
            except CheckpointError as error:
                problem, end = "", f"refused: {model.kind}: {str(error).partition(': ')[2]}"
            except Exception:
                problem = traceback.format_exc()
                # Settings that transformers itself has no model of.
                if "/transformers/" in problem.rpartition('File "')[2] or "in saved\n" in problem:
                    problem, end = "", f"not made: {model.kind}: {problem.splitlines()[-1][:160]}"
                else:
                    end = "broken"
        ends[end] += 1
        if problem:
            found[model.kind] += 1
            print(f"FOUND {model.kind}, number {number}: {problem}\n  {model}", flush=True)
        number += 1
    print(f"{number - first} models")
    for end, count in sorted(ends.items()):
        print(f"  {count} {end}")
    return found
