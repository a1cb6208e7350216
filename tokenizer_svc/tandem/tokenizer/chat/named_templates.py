"""A model may have two chat templates: one for requests with tools, and the default for the others."""

from __future__ import annotations


class NamedTemplates(str):
    """The default template, which carries the other. It is a text like the template of a model that has one only, so
    what brings it from a file to a request need not know."""

    __slots__ = ("with_tools",)
    with_tools: str

    def __new__(cls, default: str, with_tools: str) -> NamedTemplates:
        self = super().__new__(cls, default)
        self.with_tools = with_tools
        return self


def template_for(template: str | None, has_tools: bool) -> str | None:
    """Returns the one of a model's templates that a request is rendered with, as transformers chooses it."""
    return template.with_tools if has_tools and isinstance(template, NamedTemplates) else template
