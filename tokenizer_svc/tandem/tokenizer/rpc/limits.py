"""How many elements a large request to the tokenizer may have in all (`tandem.common.message_limits`). What each
of its parts may have, and all that is wrong at once, `validation.py` and `chat_validation.py` say.
"""

from __future__ import annotations

from tandem.common.message_limits import Limit, Limits, MessageLimits, limits_of_service
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

# What is wrong with one request of a DecodeStream batch is to end its stream alone: what ends the call is far more than
# any of its requests may have.
_MAX_KEY_BYTES = 64 << 10
_MAX_BATCH_STOP_STRINGS = 64 << 10
_MAX_BATCH_IDS = 1 << 20
_MAX_BATCH_TOOLS = 64 << 10


def request_limits(settings: TokenizerSettings) -> dict[str, MessageLimits]:
    """Returns the limits by the path of the method; settings give those that the contract does not."""
    service = pb.DESCRIPTOR.services_by_name["TokenizerService"]
    text = Limit(size=settings.max_input_bytes)
    batch = Limit(settings.max_batch_inputs)
    limits: Limits = {
        "TextSegment.text": text,
        "TextSegment.text_bytes": text,
        "BatchEncodeRequest.inputs": batch,
        "CountTokensRequest.inputs": batch,
        "BatchDecodeRequest.inputs": batch,
        "DecodeInput.ids": Limit(settings.max_decode_ids),
        "DecodeStreamRequest.stream_key": Limit(size=_MAX_KEY_BYTES),
        "DecodeStreamRequest.ids": Limit(max(_MAX_BATCH_IDS, settings.max_stream_ids)),
        "DecodeStreamOpen.tokenizer": Limit(size=_MAX_KEY_BYTES),
        "DecodeStreamOpen.context_ids": Limit(_MAX_BATCH_IDS),
        "DecodeStreamOpen.stop_strings": Limit(_MAX_BATCH_STOP_STRINGS, _MAX_KEY_BYTES),
        "AnswerParsing.format": Limit(size=_MAX_KEY_BYTES),
        "AnswerParsing.tools": Limit(_MAX_BATCH_TOOLS, text.size),
        "EncodeChatRequest.messages": Limit(settings.max_chat_messages),
        "EncodeChatRequest.template_arguments": text,
        **{f"ChatMessage.{name}": text for name in ("role", "content", "name", "tool_call_id", "reasoning_content")},
        **{f"ChatToolCall.{name}": text for name in ("id", "name", "arguments")},
    }
    return limits_of_service(service, limits)
