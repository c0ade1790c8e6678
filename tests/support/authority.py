"""A certificate authority of a test, and the files with what it gives out."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fanfold.rpc.credentials import Tls

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    serial: int


class Authority:
    """Gives out certificates, as files in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name_of(f"CN={name}")
        self._certificate = self._signed(self._name, self._key, HOUR, [], is_ca=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def pair(
        self,
        name: str,
        *,
        subject: str | None = "",
        uris: tuple[str, ...] = (),
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        lasts: timedelta = HOUR,
    ) -> Pair:
        """A certificate that is valid for a while from an hour ago on, in files called `name`; they may be there.

        It has that name, or another as `subject`, or with None no name but those of `uris` and `hosts`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [_host(host) for host in hosts]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        whose = x509.Name([]) if subject is None else _name_of(subject or f"CN={name}")
        certificate = self._signed(whose, key, lasts, names, is_ca=False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key", certificate.serial_number)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        return pair

    def tls(self, pair: Pair | None = None, server_name: str = "") -> Tls:
        """How a client speaks with servers that this authority knows."""
        if pair is None:
            return Tls(ca=self.file, server_name=server_name)
        return Tls(ca=self.file, certificate=pair.certificate, key=pair.key, server_name=server_name)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lasts: timedelta,
        names: list[x509.GeneralName],
        *,
        is_ca: bool,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * HOUR)
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not subject.rdns)
        return builder.sign(self._key, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name_of(subject: str) -> x509.Name:
    kinds = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME}
    parts = [part.partition("=") for part in subject.split(",")]
    return x509.Name([x509.NameAttribute(kinds[kind], value) for kind, _, value in reversed(parts)])
