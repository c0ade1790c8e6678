"""Credentials as they are shown with calls and connections."""

from __future__ import annotations

import re

import grpc

from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.rpc.addresses import Address, is_loopback
from fanfold.rpc.credentials import Credentials, Tls
from fanfold.rpc.files import Watched
from fanfold.rpc.pem import refuse_mismatch, refuse_no_certificates

Metadata = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


class Showing:
    """Credentials as they are shown to the server at `address`, always as their files are now.

    Raises:
        InvalidArgument: a file cannot be read or makes no sense.
        FailedPrecondition: the token would be sent to another machine in the clear.
    """

    def __init__(self, credentials: Credentials, address: Address) -> None:
        self._token = _bearer(credentials.token) if credentials.token else ()
        self._file = None
        if credentials.token_file is not None:
            self._file = Watched([credentials.token_file], _token_in, field="token_file")
        self._tls = _channel_credentials(credentials.tls) if credentials.tls else None
        has_token = self._token or self._file
        if has_token and self._tls is None and not is_loopback(address.host) and not credentials.plaintext:
            raise FailedPrecondition(
                f"will not send a token to {address} in the clear; use TLS", reason="PLAINTEXT_TOKEN"
            )

    def metadata(self) -> Metadata:
        """What every call carries."""
        return self._file.fresh() if self._file else self._token

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """What to connect with, None for plaintext; another object once the files have changed."""
        return self._tls.fresh() if self._tls else None


def _token_in(content: bytes) -> Metadata:
    return _bearer(content.decode("ascii", "replace").strip())


def _bearer(token: str) -> Metadata:
    if _TOKEN.fullmatch(token) is None:
        raise InvalidArgument.of_field("token", "must be one word of ASCII, at most 16,384 characters")
    return (("authorization", f"Bearer {token}"),)


def _channel_credentials(tls: Tls) -> Watched[grpc.ChannelCredentials]:
    if (tls.certificate is None) != (tls.key is None):
        raise InvalidArgument.of_field("certificate", "needs a key, and a key needs its certificate")
    has_ca = tls.ca is not None
    paths = [path for path in (tls.ca, tls.certificate, tls.key) if path is not None]

    def read(*contents: bytes) -> grpc.ChannelCredentials:
        pair = contents[has_ca:]
        if has_ca:
            refuse_no_certificates(contents[0])
        if pair:
            refuse_mismatch(*pair)
        certificate, key = pair or (None, None)
        return grpc.ssl_channel_credentials(contents[0] if has_ca else None, key, certificate)

    return Watched(paths, read, field="ca, certificate, key")
