"""Client certificates, and whose they are.

gRPC has checked that a certificate is of a known CA and valid when the connection was made; here it is looked at again
with each call, since connections last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from fanfold.errors import InvalidArgument
from fanfold.model.principal import Principal, parse_principal
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.auth.settings import CertificateRule

SPIFFE = "spiffe://"
STAR = "*"
PLACE = "{}"

_PEM = "x509_pem_cert"
_MOST_REMEMBERED = 1_024


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
        self._remembered: dict[bytes, Bearer] = {}

    def bearer_of(self, auth_context: Mapping[str, Iterable[bytes]]) -> Bearer:
        """Whose connection it is, by what gRPC tells of it. Raises NotBelieved."""
        pem = next(iter(auth_context.get(_PEM, ())), None)
        if pem is None:
            raise NotBelieved("there is neither a token nor a certificate")
        bearer = self._remembered.get(pem)
        if bearer is None:
            name, expires = _named_in(pem)
            bearer = Bearer(self._principal_named(name), expires)
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[pem] = bearer
        if time.time() >= bearer.until:
            raise NotBelieved(f"the certificate of {bearer.principal.name} has expired")
        return bearer

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


def _named_in(pem: bytes) -> tuple[str, float]:
    """Whom a certificate names, by its SPIFFE id if it has one, else by its subject; and when it expires."""
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
    return name, certificate.not_valid_after_utc.timestamp()
