"""How many elements a large request to the tokenizer service may have in all (`svc_common.message_limits`). What each
of its parts may have, and all that is wrong at once, `validation.py` and `chat_validation.py` say.
"""

from __future__ import annotations

from svc_common.message_limits import Limit, Limits, MessageLimits, limits_of_service
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tokenizer_svc.chat_validation import MAX_TEMPLATE_BYTES, MAX_TOOL_CALLS, MAX_TOOLS
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.validation import MAX_PARSE_IDS, MAX_SEGMENTS, MAX_STREAM_BATCH

MAX_NAME_BYTES = 1024
# What is wrong with one request of a DecodeStream batch is to end its stream alone: what ends the call is far more than
# any of its requests may have.
_MAX_KEY_BYTES = 64 << 10
_MAX_BATCH_STOP_STRINGS = 64 << 10
_MAX_BATCH_IDS = 1 << 20


def request_limits(settings: TokenizerSettings) -> dict[str, MessageLimits]:
    """By the path of the method."""
    service = pb.DESCRIPTOR.services_by_name["TokenizerService"]
    name = Limit(size=MAX_NAME_BYTES)
    text = Limit(size=settings.max_input_bytes)
    batch = Limit(settings.max_batch_inputs)
    limits: Limits = {
        **{f"{method.input_type.name}.tokenizer": name for method in service.methods},
        "EncodeInput.segments": Limit(MAX_SEGMENTS),
        "TextSegment.text": text,
        "TextSegment.text_bytes": text,
        "TextSegment.parse_ids": Limit(MAX_PARSE_IDS),
        "BatchEncodeRequest.inputs": batch,
        "CountTokensRequest.inputs": batch,
        "BatchDecodeRequest.inputs": batch,
        "DecodeInput.ids": Limit(settings.max_decode_ids),
        "DecodeStreamRequest.stream_key": Limit(size=_MAX_KEY_BYTES),
        "DecodeStreamRequest.ids": Limit(max(_MAX_BATCH_IDS, settings.max_stream_ids)),
        "DecodeStreamRequest.batch": Limit(MAX_STREAM_BATCH),
        "DecodeStreamOpen.tokenizer": Limit(size=_MAX_KEY_BYTES),
        "DecodeStreamOpen.context_ids": Limit(_MAX_BATCH_IDS),
        "DecodeStreamOpen.stop_strings": Limit(_MAX_BATCH_STOP_STRINGS, _MAX_KEY_BYTES),
        "EncodeChatRequest.messages": Limit(settings.max_chat_messages),
        "EncodeChatRequest.tools": Limit(MAX_TOOLS, settings.max_input_bytes),
        "EncodeChatRequest.chat_template": Limit(size=MAX_TEMPLATE_BYTES),
        "EncodeChatRequest.template_arguments": text,
        "ChatMessage.role": name,
        "ChatMessage.content": text,
        "ChatMessage.name": text,
        "ChatMessage.tool_call_id": text,
        "ChatMessage.tool_calls": Limit(MAX_TOOL_CALLS),
        "ChatToolCall.id": text,
        "ChatToolCall.name": text,
        "ChatToolCall.arguments": text,
    }
    return limits_of_service(service, limits)
