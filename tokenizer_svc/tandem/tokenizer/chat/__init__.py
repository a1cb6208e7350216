"""Chat templates: untrusted Jinja, rendered in a process of its own, with every character's origin known."""
