"""What can be said against the settings that services have in common without starting one (C40)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from fanfold.errors import FanfoldError, FieldViolation, InvalidArgument
from fanfold.rpc.addresses import LOOPBACK, Address, bindable, parse_address
from fanfold.rpc.auth.certificates import Certificates
from fanfold.rpc.auth.settings import AuthSettings, ClientSettings, TlsSettings
from fanfold.rpc.auth.tokens import Tokens
from fanfold.rpc.serving import Served
from fanfold.rpc.showing import Showing
from fanfold.rpc.tls import doors_of


def said_by(check: Callable[[], object], field: str) -> list[FieldViolation]:
    """What `check` says when it raises; of errors that name no field it is said of `field`."""
    try:
        check()
    except InvalidArgument as error:
        return list(error.violations) or [FieldViolation(field, error.message)]
    except FanfoldError as error:
        return [FieldViolation(field, error.message)]
    return []


def troubles_of_serving(config: Served) -> Iterator[FieldViolation]:
    """What keeps a service from being served as `config` says, but for ports that are taken."""
    open_to_all = config.auth == AuthSettings()
    at, unparsed = _listening("listen", config.listen)
    metrics_at, metrics_unparsed = _listening("metrics_listen", config.metrics_listen)
    yield from [*unparsed, *metrics_unparsed]
    if at == metrics_at and at.port:
        yield FieldViolation("metrics_listen", "must be another address than listen")
    yield from said_by(partial(bindable, metrics_at.host, anywhere=not open_to_all), "metrics_listen")
    unheard = said_by(partial(bindable, at.host, anywhere=not open_to_all), "listen")
    missing = list(unreadable(config.tls, "tls"))
    yield from [*unheard, *missing] or said_by(partial(doors_of, at, config.tls, open_to_all=open_to_all), "listen")
    yield from _outdated(config.tls.certificate, "tls.certificate")
    if config.auth.certificates and config.tls.client_ca is None:
        yield FieldViolation("auth.certificates", "needs tls.client_ca")
    yield from _troubles_of_auth(config.auth)


def _listening(field: str, text: str) -> tuple[Address, Sequence[FieldViolation]]:
    """Where to listen, some place on this machine if that cannot be told; and what is wrong with it."""
    try:
        return parse_address(text, field=field, any_port=True), ()
    except InvalidArgument as error:
        return Address(LOOPBACK, 0), error.violations


def _troubles_of_auth(auth: AuthSettings) -> Iterator[FieldViolation]:
    yield from said_by(partial(Certificates, auth.certificates), "auth.certificates")
    if auth.tokens is not None:
        yield from said_by(partial(Tokens, auth.tokens), "auth.tokens")
    if not auth.jwt:
        return
    from fanfold.rpc.auth.keys import refuse_no_keys  # noqa: PLC0415 - takes a tenth of a second, and most need it not

    names = [issuer.issuer for issuer in auth.jwt]
    for index, issuer in enumerate(auth.jwt):
        here = f"auth.jwt[{index}]"
        for wrong in said_by(partial(refuse_no_keys, issuer), f"{here}.jwks"):
            yield FieldViolation(wrong.field.replace("auth.jwt.", f"{here}."), wrong.description)
        if issuer.issuer in names[:index]:
            yield FieldViolation(f"{here}.issuer", "must be there once")


def troubles_of_calling(client: ClientSettings, others: Iterable[str]) -> Iterator[FieldViolation]:
    """What keeps a service from calling those at the addresses `others`, so far as these are addresses."""
    missing = list(unreadable(client, "client"))
    yield from missing
    yield from _outdated(client.certificate, "client.certificate")
    for at in [] if missing else [*map(_address_or_none, others), Address(LOOPBACK, 1)]:
        if at is None:
            continue
        if wrong := said_by(partial(Showing, client.credentials(), at), "client"):
            yield from (_of_client(each) for each in wrong)
            return  # of others it would say the same


def _of_client(wrong: FieldViolation) -> FieldViolation:
    field = f"client.{wrong.field}" if wrong.field in ClientSettings.model_fields else "client"
    return FieldViolation(field, wrong.description)


def _address_or_none(text: str) -> Address | None:
    try:
        return parse_address(text)
    except InvalidArgument:
        return None


def troubles_of_addresses(addresses: Iterable[str], field: str) -> Iterator[FieldViolation]:
    """Those in the list `field` that are none."""
    for index, address in enumerate(addresses):
        here = f"{field}[{index}]"
        yield from said_by(partial(parse_address, address, field=here), here)


def unreadable(section: BaseModel, name: str) -> Iterator[FieldViolation]:
    """The files that a section called `name` has, by themselves or by names, and that cannot be read."""
    for field, value in section:
        files = {f".{key}": file for key, file in value.items()} if isinstance(value, Mapping) else {"": value}
        for key, file in files.items():
            if isinstance(file, Path):
                try:
                    file.read_bytes()
                except OSError as error:
                    yield FieldViolation(f"{name}.{field}{key}", f"{file}: {error.strerror}")


def outdated_certificates(config: BaseModel) -> Iterator[FieldViolation]:
    """Those that a service shows, by its sections `tls` and `client`, and that are not valid today."""
    for name in ("tls", "client"):
        section = getattr(config, name, None)
        if isinstance(section, TlsSettings | ClientSettings):
            yield from _outdated(section.certificate, f"{name}.certificate")


def _outdated(certificate: Path | None, field: str) -> Iterator[FieldViolation]:
    """A certificate that is not valid today. Of files that are none others tell."""
    if certificate is None:
        return
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - only for TLS

    try:
        own = load_pem_x509_certificates(certificate.read_bytes())[0]
    except (OSError, ValueError):
        return
    now = datetime.now(UTC)
    if own.not_valid_after_utc <= now:
        yield FieldViolation(field, f"{certificate} has expired, at {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if own.not_valid_before_utc > now:
        yield FieldViolation(field, f"{certificate} is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")
