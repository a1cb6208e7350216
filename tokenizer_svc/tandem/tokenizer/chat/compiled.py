"""Templates that were compiled before: parsing one and compiling it takes 10 to 30 times as long as a rendering."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from types import CodeType

from jinja2 import nodes

from tandem.tokenizer.chat.environment import ChatEnvironment
from tandem.tokenizer.chat.origin import Alphabet
from tandem.tokenizer.chat.traced import Texts

KEPT_CHARACTERS = 1 << 18  # of all templates together: a few MiB, and as many as the longest that a request may have


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """What a template's text alone decides: nothing in it is a caller's."""

    code: CodeType
    constants: frozenset[str]  # the characters of its texts, which escapes may have written


class CompiledTemplates:
    """The templates that were used last."""

    def __init__(self, kept_characters: int = KEPT_CHARACTERS) -> None:
        """Keeps as many as have so many characters together."""
        self._most = kept_characters
        self._kept: OrderedDict[str, CompiledTemplate] = OrderedDict()
        self._characters = 0

    def compiled(self, template: str) -> CompiledTemplate:
        """Returns it from those kept, or compiles it. Raises what Jinja raises of a template that is none."""
        found = self._kept.get(template)
        if found is not None:
            self._kept.move_to_end(template)
            return found
        made = _compiled(template)
        if len(template) <= self._most:
            self._kept[template] = made
            self._characters += len(template)
            while self._characters > self._most:
                self._characters -= len(self._kept.popitem(last=False)[0])
        return made


def _compiled(template: str) -> CompiledTemplate:
    environment = ChatEnvironment(Texts(Alphabet()))  # none of whose characters gets into the code
    tree = environment.parse(template)
    constants = frozenset().union(*(each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)))
    return CompiledTemplate(environment.compile(tree), constants)
