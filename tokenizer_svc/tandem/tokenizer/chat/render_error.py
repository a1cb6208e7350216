"""The error of a template. A file of its own: the service knows it without Jinja, which its renderers import."""

from __future__ import annotations


class RenderError(ValueError):
    """A template cannot be rendered with these messages; the error holds the template's own message, or what is wrong
    with it."""
