"""The HTTP door: OpenAI's interface in front of a tokenizer service and workers, on the SDK's `AsyncClient`."""
