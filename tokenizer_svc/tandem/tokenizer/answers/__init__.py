"""What a model says, as events: content, reasoning and calls of tools, whatever format it was trained to write."""
