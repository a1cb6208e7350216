"""Generates the tables of docs/models.md from the reader's: from which files each architecture loads, and which models
that see or hear hold one.

python docs/architectures.py           write it; `make protos` does
python docs/architectures.py --check   exit 1 if it is not what the code says
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_text_models import TEXT_MODELS
from tandem.worker.checkpoints.hugging_face_wrapped import text_fields, wrapper_of
from tandem.worker.checkpoints.hugging_face_wrappers import WRAPPERS
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.convert.gguf import CONVERTED as TO_GGUF
from tandem.worker.model.whole_layers import behind_the_call, not_compiled

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.worker_svc.checkpoints.published import PUBLISHED
from tests.worker_svc.checkpoints.published_states import PUBLISHED as WITH_STATES
from tests.worker_svc.checkpoints.published_wrappers import PUBLISHED_WRAPPERS
from tests.worker_svc.checkpoints.test_hybrids import PUBLISHED as HYBRIDS
from tests.worker_svc.model.tiny_models import MODELS

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- made by docs/architectures.py -->\n", "<!-- end of what is made -->\n"
WRAPPERS_BEGIN, WRAPPERS_END = "<!-- wrappers, made by docs/architectures.py -->\n", "<!-- end of the wrappers -->\n"
WRAPPERS_HEAD = "| `config.json` says | text model | published ones that are tried without weights |\n|---|---|---|\n"
COLUMNS = (
    "architecture",
    "`config.json` says",
    "GGUF says",
    "Meta's layout",
    "converts to",
    "one call a layer on a CPU",
    "kernels on a GPU",
    "compared with",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|\n"
SIZES = {"vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6}
META = ("llama", "mistral")


def rows() -> Iterator[str]:
    """The table's rows, in the order of the reader's table."""
    models, cases = published(), compared()
    for each in ARCHITECTURES.values():
        written = ["Hugging Face", *(["GGUF"] if each.name in TO_GGUF else [])]
        written += ["Meta"] if each.name == "llama" else []
        columns = (
            each.name,
            f"`{each.class_name}`",
            f"`{TO_GGUF[each.name]}`" if each.name in TO_GGUF else "no",
            "yes" if each.name in META else "no",
            ", ".join(written),
            called(models[each.name]),
            kernels(models[each.name]),
            f"transformers, {cases[each.class_name]} shapes",
        )
        yield f"| {' | '.join(columns)} |\n"


def published() -> dict[str, ModelConfig]:
    """A published model of each architecture, or one of its defaults."""
    found: dict[str, ModelConfig] = {}
    usual = [SIZES | {"architectures": [each.class_name], "model_type": name} for name, each in ARCHITECTURES.items()]
    said = [values for values, *_ in (*PUBLISHED.values(), *WITH_STATES.values())]
    for values in (*said, *usual):
        if values["model_type"] in found:
            continue
        fields = text_fields(Fields(Path("config.json"), values))
        each = architecture_of(fields)
        found.setdefault(each.name, read_config(fields, each, fields.boolean("tie_word_embeddings", each.tied)))
    return found


def called(config: ModelConfig) -> str:
    """Whether a CPU computes each layer of a model in one compiled call, or what these have that it has not."""
    layers = range(config.num_layers)
    apart = [not_compiled(config, layer) for layer in layers]
    behind = [behind_the_call(config) for layer in layers if not apart[layer]]
    if not behind:
        return f"no: {_listed(apart)}"
    words = "yes" if not any(behind) else f"up to {_listed(behind)}"
    return f"{words}; not with {_listed(apart)}" if any(apart) else words


def kernels(config: ModelConfig) -> str:
    """What a GPU has kernels for in the place of, or beside, those of a dense Llama."""
    if config.compression is not None:
        return "not served there"
    parts = {
        "attention": config.latents is None,
        "latents": config.latents is not None,
        "an indexer": config.indexer is not None,
        "states": config.recurrence is not None,
        "experts": config.experts is not None,
    }
    return ", ".join(part for part, has in parts.items() if has)


def _listed(reasons: list[str]) -> str:
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason))


def compared() -> Counter[str]:
    """How many models of each class the suite and `make exhaustive` compare with transformers."""
    found = Counter(f"{kind.removesuffix('Text')}ForCausalLM" for kind, _ in MODELS.values())
    found["GPT2LMHeadModel"] = found.pop("GPT2ForCausalLM")
    return found


def wrappers() -> Iterator[str]:
    """The rows of the table of models that see or hear."""
    seeing = {name: values for name, (values, _) in PUBLISHED_WRAPPERS.items() if "," not in name}
    tried = seeing | {name: values for name, (values, *_) in (*PUBLISHED.items(), *HYBRIDS.items())}
    for each in WRAPPERS:
        names = ", ".join(f"`{name}`" for name in (each.class_name, *each.also_spelled))
        usual = TEXT_MODELS[each.text].architecture if each.text in TEXT_MODELS else each.text
        known = [
            name.removeprefix("the text model of ")
            for name, values in tried.items()
            if wrapper_of(Fields(Path("config.json"), values)) == each
        ]
        yield f"| {names} | {usual if each.alone else f'any; {usual} where it is not said'} | {', '.join(known)} |\n"


def page() -> str:
    """The text of docs/models.md."""
    text = _between(PAGE.read_text(encoding="utf-8"), BEGIN, HEAD + "".join(rows()), END)
    return _between(text, WRAPPERS_BEGIN, WRAPPERS_HEAD + "".join(wrappers()), WRAPPERS_END)


def _between(text: str, begin: str, made: str, end: str) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + made + end + after


def main(arguments: list[str]) -> int:
    """Writes or checks the page."""
    text = page()
    if arguments == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE} is not what the code says: python docs/architectures.py")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
