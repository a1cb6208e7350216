"""The chat formats of model families whose files often lack a template."""

from __future__ import annotations

from tandem.tokenizer.chat.mistral_format import mistral_template
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabulary import VocabularyType

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {{- message.content | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

LLAMA2 = """{%- set system = namespace(text='', next='user') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set system.text = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' %}
    {%- elif message.role not in ('user', 'assistant') %}
        {{- raise_exception('Llama 2 knows the roles system (first), user and assistant, not ' + message.role) }}
    {%- elif message.role != system.next %}
        {{- raise_exception('in Llama 2 user and assistant take turns, the user first') }}
    {%- elif message.role == 'user' %}
        {{- bos_token + '[INST] ' + (system.text + message.content) | trim + ' [/INST]' }}
        {%- set system.text = '' %}
        {%- set system.next = 'assistant' %}
    {%- else %}
        {{- ' ' + message.content | trim + ' ' + eos_token }}
        {%- set system.next = 'user' %}
    {%- endif %}
{%- endfor %}
{%- if system.text %}
    {{- raise_exception('in Llama 2 a system message stands in the first message of the user, and there is none') }}
{%- endif %}"""

_LLAMA2_TOKENS = 32_000


def template_of(tokenizer: Tokenizer) -> str | None:
    """Returns the model's own template, or that of the family that its vocabulary belongs to."""
    if tokenizer.config.chat_template is not None:
        return tokenizer.config.chat_template
    texts = {token.text for token in tokenizer.table.specials}
    if {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"} <= texts:
        return LLAMA3
    if tokenizer.type == VocabularyType.SPM and tokenizer.vocabulary_size == _LLAMA2_TOKENS:
        return LLAMA2
    return mistral_template(tokenizer.config.tekken_version, texts)
