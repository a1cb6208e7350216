"""The Tandem SDK: text in, text out, through a tokenizer service and inference workers.

from tandem.client import Client

with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
    with client.stream("Once upon a time", max_tokens=64) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
"""

from .account import FinishReason, Usage
from .async_client import AsyncClient
from .async_stream import AsyncStream
from .errors import (
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
from .guided import Choices, Grammar, Guide, JsonSchema, Regex
from .operators import WorkerLoad, WorkerState
from .params import GenerateOptions, StoppingParams
from .sampling_params import SamplingParams
from .settings import ConnectionSettings, Credentials, FailoverSettings
from .sync_client import Client, Stream
from .types import (
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
    ToolCall,
    TopLogprobs,
    Vocabulary,
)

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncStream",
    "CancelledError",
    "ChatEncoding",
    "ChatMessage",
    "Choices",
    "Chunk",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectionSettings",
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
    "Regex",
    "ResourceExhaustedError",
    "ResultNotReadyError",
    "SamplingParams",
    "Segment",
    "SpecialToken",
    "StatusError",
    "StoppingParams",
    "Stream",
    "TandemError",
    "TextInput",
    "Timings",
    "TokenizerInfo",
    "ToolCall",
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
