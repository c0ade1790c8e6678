"""Certificates that servers show, renewed without a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.rpc.addresses import Address, bindable, is_loopback, parse_address
from fanfold.rpc.auth.settings import TlsSettings
from fanfold.rpc.files import Watched
from fanfold.rpc.pem import refuse_mismatch, refuse_no_certificates

_Shown = TypeVar("_Shown")


@dataclass(frozen=True, slots=True)
class Door:
    """An address to listen at, and with what; without credentials in the clear."""

    address: Address
    credentials: grpc.ServerCredentials | None = None


def doors_of(listen: Address, settings: TlsSettings, *, open_to_all: bool) -> list[Door]:
    """Where a server listens: at `listen`, and perhaps elsewhere where clients must show a certificate.

    Raises:
        InvalidArgument: a setting lacks another one, a file cannot be read, or key and certificate are of two pairs.
        FailedPrecondition: it would be heard beyond this machine, by all or in the clear (C40).
    """
    return [
        replace(door, address=_bindable(door, open_to_all=open_to_all, plaintext=settings.plaintext))
        for door in _doors(listen, settings)
    ]


def _bindable(door: Door, *, open_to_all: bool, plaintext: bool) -> Address:
    host, port = door.address.host, door.address.port
    bind = bindable(host, anywhere=not open_to_all)
    if door.credentials is None and not plaintext and not is_loopback(bind):
        raise FailedPrecondition(
            f"will not listen on {host or 'all addresses'} without TLS: what callers show would be sent in the clear"
            " (tls.certificate, or tls.plaintext if something else encrypts)",
            reason="PLAINTEXT",
        )
    return Address(bind, port)


def _doors(listen: Address, settings: TlsSettings) -> list[Door]:
    if settings.certificate is None or settings.key is None:
        for name in ("certificate", "key", "client_ca", "mutual_listen"):
            if getattr(settings, name):
                raise InvalidArgument.of_field(f"tls.{name}", "needs tls.certificate and tls.key")
        return [Door(listen)]
    if settings.client_ca is None:
        if settings.mutual_listen:
            raise InvalidArgument.of_field("tls.mutual_listen", "needs tls.client_ca")
        return [Door(listen, _credentials([settings.certificate, settings.key]))]
    mutual = _credentials([settings.certificate, settings.key, settings.client_ca])
    if not settings.mutual_listen:
        return [Door(listen, mutual)]
    at = parse_address(settings.mutual_listen, field="tls.mutual_listen", any_port=True)
    return [Door(listen, _credentials([settings.certificate, settings.key])), Door(at, mutual)]


def _credentials(paths: list[Path]) -> grpc.ServerCredentials:
    """What is in the files at each handshake; with a third one, of CA certificates, clients must have one of its."""
    watched = Watched(paths, _configuration, field="tls")
    return grpc.dynamic_ssl_server_credentials(
        watched.value,
        Renewal(watched),  # type: ignore[arg-type]  # gRPC documents None, its stubs do not
        require_client_authentication=len(paths) > 2,
    )


class Renewal(Generic[_Shown]):
    """What gRPC asks at each handshake: what to show from now on, None if that has not changed.

    gRPC's core (1.85) frees what it showed at every answer but None, while other handshakes may still use it: with the
    same answer given again and again, a few clients that connect at once end the process.
    """

    def __init__(self, watched: Watched[_Shown]) -> None:
        self._watched = watched
        self._shown = watched.value

    def __call__(self) -> _Shown | None:
        """The answer. It does not wait."""
        fresh = self._watched.fresh()
        if fresh is self._shown:
            return None
        self._shown = fresh
        return fresh


def _configuration(
    certificate: bytes, key: bytes, client_ca: bytes | None = None
) -> grpc.ServerCertificateConfiguration:
    refuse_mismatch(certificate, key)
    if client_ca is not None:
        refuse_no_certificates(client_ca)
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)
