"""Client certificates, and whose they are.

gRPC has checked that a certificate is of a known CA and valid when the connection was made; here it is looked at again
with each call, since connections last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fanfold.errors import InvalidArgument
from fanfold.model.principal import Principal, parse_principal
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.settings import CertificateRule

SPIFFE = "spiffe://"
STAR = "*"
PLACE = "{}"

_PEM = "x509_pem_cert"
_MOST_REMEMBERED = 1_024


@dataclass(frozen=True, slots=True)
class _Bearer:
    """Whom a certificate names: its SPIFFE id if it has one, else its subject."""

    name: str
    expires: datetime


class Certificates:
    """Knows the bearers of client certificates by rules. Raises InvalidArgument for a rule that names no principal."""

    def __init__(self, rules: Sequence[CertificateRule]) -> None:
        for index, rule in enumerate(rules):
            parse_principal(rule.principal.replace(PLACE, "x"), path=f"auth.certificates[{index}].principal")
            if PLACE in rule.principal and not rule.match.endswith(STAR):
                raise InvalidArgument.of_field(
                    f"auth.certificates[{index}].match", f"must end with {STAR}, as the principal has {PLACE}"
                )
        self._rules = tuple(rules)
        self._remembered: dict[bytes, tuple[Principal, datetime]] = {}

    def principal_of(self, auth_context: Mapping[str, Iterable[bytes]]) -> Principal:
        """Whose connection it is, by what gRPC tells of it. Raises NotBelieved."""
        pem = next(iter(auth_context.get(_PEM, ())), None)
        if pem is None:
            raise NotBelieved("there is neither a token nor a certificate")
        remembered = self._remembered.get(pem)
        if remembered is None:
            bearer = _bearer_of(pem)
            remembered = self._principal_named(bearer.name), bearer.expires
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[pem] = remembered
        principal, expires = remembered
        if datetime.now(UTC) >= expires:
            raise NotBelieved(f"the certificate of {principal.name} has expired")
        return principal

    def _principal_named(self, name: str) -> Principal:
        for rule in self._rules:
            rest = _rest(rule.match, name)
            if rest is None:
                continue
            try:
                return Principal(parse_principal(rule.principal.replace(PLACE, rest)), frozenset(rule.roles))
            except InvalidArgument:
                break
        raise NotBelieved(f"no rule knows the certificate of {name[:256]}")


def _rest(match: str, name: str) -> str | None:
    """What the star stands for, or nothing where there is none; None if it does not match."""
    if not match.endswith(STAR):
        return "" if name == match else None
    start = match.removesuffix(STAR)
    rest = name.removeprefix(start)
    return rest if name.startswith(start) and rest and not {"/", ","} & set(rest) else None


def _bearer_of(pem: bytes) -> _Bearer:
    from cryptography import x509  # noqa: PLC0415 - only where there are certificates

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = [each.value for each in certificate.extensions if isinstance(each.value, x509.SubjectAlternativeName)]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise NotBelieved("the certificate cannot be read") from None
    uris = [
        uri
        for each in names
        for uri in each.get_values_for_type(x509.UniformResourceIdentifier)
        if uri.startswith(SPIFFE)
    ]
    if len(uris) > 1:
        raise NotBelieved("the certificate has several SPIFFE ids")
    name = uris[0] if uris else certificate.subject.rfc4514_string()
    return _Bearer(name, certificate.not_valid_after_utc)
