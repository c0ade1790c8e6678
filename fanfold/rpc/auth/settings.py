"""The settings about security that all services have in common: `auth`, `tls` and `client`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fanfold.model.principal import Role
from fanfold.rpc.credentials import Credentials, Tls
from fanfold.section import Seconds, Section, Unit

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]


class JwtIssuer(Section):
    """An issuer of JSON Web Tokens, as an OpenID provider or a Kubernetes cluster, and what its claims mean here."""

    issuer: str = Field(min_length=1)
    """The claim `iss` of its tokens."""
    audience: str = Field(min_length=1)
    """What their claim `aud` must have."""
    jwks: str = Field(min_length=1)
    """Its keys: the URL of its JWKS (https, or http on this machine), or a file."""
    jwks_ca: Path | None = None
    """CA certificates for that URL; by default the system's."""
    jwks_token_file: Path | None = None
    """File with a token to show when asking that URL, as Kubernetes wants it; read anew each time."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    """The algorithms that are taken. Those of shared secrets (HS256 and the like) only with a file of keys."""
    refresh: Seconds = 300.0
    """Seconds between two looks at a JWKS URL."""
    refresh_least: Seconds = 10.0
    """Least seconds between two looks because of a token whose key is not known."""
    keys_max_age: Seconds = 86_400.0
    """Seconds after which keys are not believed any more if they cannot be had anew."""
    leeway: Annotated[float, Field(ge=0, le=300), Unit("seconds")] = 30.0
    """Seconds that clocks may differ by."""
    prefix: str = Field(default="", max_length=64)
    """What the names of its principals begin with here, so that they are nobody else's, as `okta:`."""
    principal_claim: str = Field(default="sub", min_length=1)
    """The claim that is the principal's name."""
    session_claim: str = "sid"
    """The claim that, where there is one, is the session within it: `alice/session-7`. Empty means that none is."""
    roles_claim: str = "roles"
    """The claim with the roles, as a list or with spaces between; dots lead into objects, as `realm_access.roles`."""
    roles: dict[str, Role] = Field(default={})
    """What values of that claim mean, as `{"mesh-admins": "operator"}`. By default those that are called like roles are
    these, and others mean nothing."""
    default_roles: tuple[Role, ...] = (Role.CALLER,)
    """The roles of those to whom the claim gives none."""
    principals: dict[str, tuple[Role, ...]] = Field(default={})
    """The roles of single principals, by the value of their claim, in place of all this."""


class CertificateRule(Section):
    """Who the bearers of some client certificates are."""

    match: str = Field(min_length=1)
    """A SPIFFE id (`spiffe://mesh/node/*`) or a whole subject as `CN=node-1,O=Mesh`; a `*` at its end stands for any
    text without a slash or comma."""
    principal: str = Field(min_length=1)
    """The principal's name; `{}` in it is what the `*` stands for."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    """Its roles."""


class AuthSettings(Section):
    """How callers are known; several ways at once are fine.

    With none of them the service is in development mode: it listens on loopback only, and whoever calls is the
    principal `anonymous`.
    """

    tokens: Path | None = None
    """File of hashed tokens, which `fanfold token` keeps; changes are seen within a second."""
    jwt: tuple[JwtIssuer, ...] = ()
    """Issuers of JSON Web Tokens."""
    certificates: tuple[CertificateRule, ...] = ()
    """Who the bearers of client certificates from `tls.client_ca` are; the first rule that matches counts."""


class TlsSettings(Section):
    """What the service shows of itself. Files are read again when they change; connections stay."""

    certificate: Path | None = None
    """Its certificate, with intermediate ones behind it, in PEM. None means no TLS."""
    key: Path | None = None
    """The certificate's key, in PEM."""
    client_ca: Path | None = None
    """CA certificates of clients, in PEM; clients must then have one of these certificates."""
    mutual_listen: str = ""
    """Another address, at which alone clients must have a certificate; by default they must where it listens."""
    plaintext: bool = False
    """Whether to listen beyond this machine without TLS, as behind a proxy that has it. Tokens are then sent in the
    clear."""


NO_TLS = TlsSettings()


class ClientSettings(Section):
    """What the service shows of itself when it calls other services."""

    token_file: Path | None = None
    """File with its token, read again when it changes."""
    tls: bool = False
    """Whether to use TLS also where none of what follows is given."""
    ca: Path | None = None
    """CA certificates of the others, in PEM; by default those that gRPC brings along."""
    certificate: Path | None = None
    """Its client certificate, in PEM."""
    key: Path | None = None
    """The certificate's key, in PEM."""
    server_name: str = ""
    """The name that the others' certificates must have, where that is not the one in their address."""
    plaintext: bool = False
    """Whether to send its token to other machines without TLS."""

    def credentials(self) -> Credentials:
        """What they come to."""
        tls = None
        if self.tls or self.ca or self.certificate or self.key:
            tls = Tls(ca=self.ca, certificate=self.certificate, key=self.key, server_name=self.server_name)
        return Credentials(token_file=self.token_file, tls=tls, plaintext=self.plaintext)


NO_CLIENT = ClientSettings()
