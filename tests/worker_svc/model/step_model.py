"""The text model of transformers' Step 3.7 alone, as Step 3.5 Flash was published: transformers has no class of it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import transformers
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel


class Step3p5ForCausalLM(Step3p7PreTrainedModel, GenerationMixin):
    config_class = transformers.Step3p7TextConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **more: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids, **more).last_hidden_state))


def register() -> None:
    """Lets transformers find the class for a config, with names of tensors as they are in the whole."""
    whole = get_checkpoint_conversion_mapping("step3p7")
    assert whole is not None
    own = [one for one in whole if "moe" in str(one.source_patterns) or "expert" in str(one.source_patterns)]
    register_checkpoint_conversion_mapping("step3p5", own, overwrite=True)
    transformers.AutoModelForCausalLM.register(transformers.Step3p7TextConfig, Step3p5ForCausalLM, exist_ok=True)
