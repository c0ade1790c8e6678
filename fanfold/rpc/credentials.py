"""What a client shows of itself, and whom it believes to be the server. Light: settings have it too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How TLS is spoken. Files are in PEM; `ca` None means the CA certificates that gRPC brings along.

    `server_name` is what the server's certificate must name where that is not the host of its address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, as such or in a file that is read again when it changes; and TLS, with a certificate perhaps.

    `plaintext` allows to send the token to other machines without TLS.
    """

    token: str = ""
    token_file: Path | None = None
    tls: Tls | None = None
    plaintext: bool = False

    def __repr__(self) -> str:
        return f"Credentials({'with a token' if self.token or self.token_file else 'no token'}, tls={self.tls})"


NO_CREDENTIALS = Credentials()
