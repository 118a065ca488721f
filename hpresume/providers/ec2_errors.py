"""What EC2's errors mean to a caller: no capacity, try again, or never.

Codes: "Error codes for the Amazon EC2 API" in the EC2 API reference. A code that is not
here is a mistake: the request or the account's rights have to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
)

from hpresume.errors import (
    CapacityError,
    ProviderError,
    ProviderRefusedError,
    ProviderTimeoutError,
    ProviderTransientError,
)

NO_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded",
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
    }
)

TRY_AGAIN = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestThrottledException",
        "EC2ThrottledException",
        "BandwidthLimitExceeded",
        "InternalError",
        "InternalFailure",
        "ServerInternal",
        "ServiceUnavailable",
        "Unavailable",
        "RequestTimeout",
        "RequestTimeoutException",
        "RequestExpired",
        "ExpiredToken",
        "IncorrectState",
        "IncorrectInstanceState",
        # its owner may be the machine that was given up a moment ago
        "InvalidIPAddress.InUse",
        # the token has made a machine with other parameters: it will show under its tag
        "IdempotentParameterMismatch",
    }
)

NOT_FOUND = frozenset(
    {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidInstanceId.NotFound"}
)

_TIMEOUTS = (ConnectTimeoutError, ReadTimeoutError)
_CONNECTION = (EndpointConnectionError, ConnectionClosedError, HTTPClientError)
_SERVER_ERROR = 500


def code_of(error: ClientError) -> str:
    """EC2's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn errors of boto3 into those of a provider, with ``action`` before them."""
    try:
        yield
    except ClientError as error:
        raise _kind(error)(f"{action}: EC2 says {_said(error)}") from error
    except _TIMEOUTS as error:
        raise ProviderTimeoutError(f"{action}: EC2 does not answer: {error}") from error
    except _CONNECTION as error:
        raise ProviderTransientError(f"{action}: EC2 cannot be reached: {error}") from error
    except (BotoCoreError, ValueError) as error:
        # no credentials, no region, a parameter of a kind that EC2 does not take
        raise ProviderRefusedError(f"{action}: {error}") from error


def _kind(error: ClientError) -> type[ProviderError]:
    code = code_of(error)
    if code in NO_CAPACITY:
        return CapacityError
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in TRY_AGAIN or status >= _SERVER_ERROR:
        return ProviderTransientError
    return ProviderRefusedError


def _said(error: ClientError) -> str:
    """Code and message; without the encoded message of an authorisation, which is long."""
    message = str(error.response.get("Error", {}).get("Message", ""))
    message = message.partition(" Encoded authorization failure message")[0]
    return f"{code_of(error)}: {' '.join(message.split())}"
