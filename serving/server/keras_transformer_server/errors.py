"""What goes wrong with a request, in words for whoever sent it."""

import grpc


class RequestError(Exception):
    """An answer with a code and a message that names what came and what is expected."""

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.NOT_FOUND, message)


def shorten(value, longest: int = 80) -> str:
    """What came, as it can stand in a message."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
