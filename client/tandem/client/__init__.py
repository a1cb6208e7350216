"""The Tandem SDK: text in, text out, through a tokenizer service and inference workers.

from tandem.client import Client

with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
    with client.stream("Once upon a time", max_tokens=64) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
"""

from tandem.client.account import FinishReason, Usage
from tandem.client.answers import AnswerEvent, ContentEvent, ReasoningEvent, ToolCall, ToolCallEvent
from tandem.client.async_client import AsyncClient
from tandem.client.async_stream import AsyncStream
from tandem.client.batches import BatchEvent
from tandem.client.calling import ToolChoice
from tandem.client.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    ClientClosedError,
    ConfigurationError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    QuarantinedError,
    ResourceExhaustedError,
    ResultNotReadyError,
    StatusError,
    TandemError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from tandem.client.guided import Choices, Grammar, Guide, JsonSchema, Regex, StructuralTag
from tandem.client.operators import WorkerLoad, WorkerState
from tandem.client.params import GenerateOptions, StoppingParams
from tandem.client.reasoning import Reasoning
from tandem.client.sampling_params import SamplingParams
from tandem.client.settings import ConnectionSettings, Credentials, FailoverSettings
from tandem.client.sync_client import Client, Stream
from tandem.client.types import (
    ChatEncoding,
    ChatMessage,
    Chunk,
    Conversation,
    Encoding,
    GenerationResult,
    Message,
    ModelInfo,
    Output,
    Prompt,
    PromptLogprobs,
    Segment,
    SpecialToken,
    TextInput,
    Timings,
    TokenizerInfo,
    ToolRun,
    TopLogprobs,
    Vocabulary,
)

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AnswerEvent",
    "AsyncClient",
    "AsyncStream",
    "BatchEvent",
    "CancelledError",
    "ChatEncoding",
    "ChatMessage",
    "Choices",
    "Chunk",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectionSettings",
    "ContentEvent",
    "Conversation",
    "Credentials",
    "DataLossError",
    "DeadlineExceededError",
    "Encoding",
    "FailedPreconditionError",
    "FailoverSettings",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "GenerationResult",
    "Grammar",
    "Guide",
    "InternalError",
    "InvalidArgumentError",
    "JsonSchema",
    "Message",
    "ModelInfo",
    "NotFoundError",
    "OutOfRangeError",
    "Output",
    "PermissionDeniedError",
    "Prompt",
    "PromptLogprobs",
    "QuarantinedError",
    "Reasoning",
    "ReasoningEvent",
    "Regex",
    "ResourceExhaustedError",
    "ResultNotReadyError",
    "SamplingParams",
    "Segment",
    "SpecialToken",
    "StatusError",
    "StoppingParams",
    "Stream",
    "StructuralTag",
    "TandemError",
    "TextInput",
    "Timings",
    "TokenizerInfo",
    "ToolCall",
    "ToolCallEvent",
    "ToolChoice",
    "ToolRun",
    "TopLogprobs",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "Usage",
    "Vocabulary",
    "WorkerLoad",
    "WorkerState",
]
