"""Errors of the protocol: a code, an HTTP status and one line of text.

Codes and statuses are those of SageMaker's API reference (section "Common Errors"); the four
exceptions that botocore's model has (ConflictException, ResourceInUse,
ResourceLimitExceeded, ResourceNotFound) carry no status there, and answer 400.
"""

from __future__ import annotations

from hpresume.errors import (
    ConflictError,
    HpresumeError,
    RequestRefusedError,
    ResourceInUseError,
    ResourceLimitError,
    ResourceNotFoundError,
    ServiceBusyError,
    ServiceError,
)

#: Longest text of a modelled exception: the model's limit of ``Message``, in characters.
MAX_MODELED_MESSAGE = 1024

#: Longest text of any other error, in characters; several violations find room in it.
MAX_MESSAGE = 4096

#: Codes that botocore's model declares, operation by operation.
MODELED = frozenset(
    {"ConflictException", "ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound"}
)

_STATUS = {
    "IncompleteSignature": 400,
    "InternalFailure": 500,
    "InvalidSignatureException": 403,
    "MalformedHttpRequestException": 400,
    "MissingAuthenticationToken": 403,
    "RequestEntityTooLargeException": 413,
    "RequestExpired": 400,
    "RequestTimeoutException": 408,
    "SerializationException": 400,
    "ThrottlingException": 400,
    "UnknownOperationException": 404,
    "UnrecognizedClientException": 403,
    "ValidationException": 400,
}


class ApiError(HpresumeError):
    """One error as a client gets it."""

    def __init__(self, code: str, message: str) -> None:
        most = MAX_MODELED_MESSAGE if code in MODELED else MAX_MESSAGE
        if len(message) > most:
            message = message[: most - 1] + "…"
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """HTTP status that goes with the code."""
        return _STATUS.get(self.code, 400)

    def document(self) -> dict[str, str]:
        """Body of the answer; modelled exceptions name their member ``Message``."""
        key = "Message" if self.code in MODELED else "message"
        return {"__type": self.code, key: self.message}


_CODES: tuple[tuple[type[ServiceError], str], ...] = (
    (ResourceNotFoundError, "ResourceNotFound"),
    (ResourceInUseError, "ResourceInUse"),
    (ResourceLimitError, "ResourceLimitExceeded"),
    (ConflictError, "ConflictException"),
    (RequestRefusedError, "ValidationException"),
    (ServiceBusyError, "ThrottlingException"),
)


def from_service(error: ServiceError) -> ApiError:
    """The protocol's word for an error of the cluster service."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "ValidationException")
    return ApiError(code, str(error))


def declared(error: ApiError, codes: frozenset[str]) -> ApiError:
    """The error, as ValidationException where the operation does not declare its code."""
    if error.code in MODELED and error.code not in codes:
        return ApiError("ValidationException", error.message)
    return error
