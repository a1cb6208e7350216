"""How Mistral's models are talked to whose files are `tekken.json`, and not a template: what mistral-common makes of a
conversation, by the version that the file states.

| version | system                      | tools before     | calls                          | results                  |
|---------|-----------------------------|------------------|--------------------------------|--------------------------|
| 3       | in front of the user's last | the user's last  | a list                         | an object                |
| from 7  | `[SYSTEM_PROMPT]`           | the user's last  | a list                         | id `[TOOL_CONTENT]` text |
| from 11 | `[SYSTEM_PROMPT]`           | the user's last  | name `[CALL_ID]` id `[ARGS]` . | id `[TOOL_CONTENT]` text |
| from 13 | `[SYSTEM_PROMPT]`           | the user's first | name `[ARGS]` .                | text                     |

Messages of the user that follow each other are one, with an empty line between.
"""

from __future__ import annotations

from collections.abc import Set

_VERSIONS = {f"v{number}": number for number in (3, 7, 11, 13, 15)}

_TEMPLATE = """
{%- set at = namespace(first=none, last=none, system='', tools=[], calls=[], before='') %}
{%- for message in messages %}
    {%- if message.role == 'user' and at.before != 'user' %}
        {%- set at.first = loop.index0 if at.first is none else at.first %}
        {%- set at.last = loop.index0 %}
    {%- elif message.role == 'system' %}
        {%- if at.before not in ('', 'system') %}
            {{- raise_exception('Mistral knows a system message in front of all others only') }}
        {%- endif %}
        {%- set at.system = at.system + ('\\n\\n' if at.system else '') + message.content %}
    {%- elif message.role not in ('user', 'assistant', 'tool') %}
        {{- raise_exception('Mistral knows the roles system, user, assistant and tool, not ' + message.role) }}
    {%- elif message.role == 'assistant' and at.before == 'assistant' %}
        {{- raise_exception('in Mistral something stands between two answers') }}
    {%- endif %}
    {%- set at.before = message.role %}
{%- endfor %}
{%- for tool in tools or [] %}
    {%- set function = {'name': tool.function.name, 'description': tool.function.description or ''} %}
    {%- set function = dict(function, parameters=tool.function.parameters or {}) %}
    {%- set at.tools = at.tools + [{'type': 'function', 'function': function}] %}
{%- endfor %}
{%- macro begin(place) %}
    {%- if at.tools and place == (at.first if version >= 13 else at.last) %}
        {{- '[AVAILABLE_TOOLS]' + at.tools | tojson + '[/AVAILABLE_TOOLS]' }}
    {%- endif %}
    {{- '[INST]' }}
    {%- if version < 7 and at.system and place == at.last %}
        {{- at.system + '\\n\\n' }}
    {%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if version < 7 and at.first is none and at.system %}
    {{- begin(none) + '[/INST]' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and version >= 7 %}
        {{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {%- if loop.first or loop.previtem.role != 'user' %}
            {{- begin(loop.index0) }}
        {%- else %}
            {{- '\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- if loop.last or loop.nextitem.role != 'user' %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- if thinks and message.reasoning_content %}
            {{- '[THINK]' + message.reasoning_content + '[/THINK]' }}
        {%- endif %}
        {%- if message.content %}
            {{- message.content.rstrip(' ') }}
        {%- endif %}
        {%- set at.calls = [] %}
        {%- for call in message.tool_calls or [] %}
            {%- if version >= 11 %}
                {{- '[TOOL_CALLS]' + call.function.name }}
                {%- if version < 13 and call.id %}
                    {{- '[CALL_ID]' + call.id }}
                {%- endif %}
                {{- '[ARGS]' + call.function.arguments | tojson }}
            {%- else %}
                {%- set one = {'name': call.function.name, 'arguments': call.function.arguments} %}
                {%- set at.calls = at.calls + [dict(one, id=call.id) if call.id else one] %}
            {%- endif %}
        {%- endfor %}
        {%- if at.calls %}
            {{- '[TOOL_CALLS]' + at.calls | tojson }}
        {%- endif %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' }}
        {%- if version >= 13 %}
            {{- message.content }}
        {%- elif version >= 7 %}
            {{- message.tool_call_id + '[TOOL_CONTENT]' + message.content }}
        {%- elif message.content[:1] in ('{', '[') or message.content in ('true', 'false', 'null')
              or message.content | int | string == message.content
              or message.content | float | string == message.content %}
            {{- '{"content": ' + message.content + ', "call_id": ' + message.tool_call_id | tojson + '}' }}
        {%- else %}
            {{- {'content': message.content, 'call_id': message.tool_call_id} | tojson }}
        {%- endif %}
        {{- '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""


def mistral_template(version: str, specials: Set[str]) -> str | None:
    """Returns the template of a `tekken.json` of a version ("v11"), which has these special tokens; None if it states
    no version, or one that mistral-common does not know, or lacks the tokens."""
    number = _VERSIONS.get(version, 0)
    needed = {"[INST]": True, "[/INST]": True}
    needed |= {"[SYSTEM_PROMPT]": number >= 7, "[TOOL_CONTENT]": number in range(7, 13), "[ARGS]": number >= 11}
    if not number or any(wanted and token not in specials for token, wanted in needed.items()):
        return None
    thinks = str(number >= 13 and "[THINK]" in specials).lower()
    return f"{{%- set version = {number} %}}{{%- set thinks = {thinks} %}}{_TEMPLATE}"
