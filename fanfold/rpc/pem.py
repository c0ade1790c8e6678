"""Certificates and keys as they are in files."""

from __future__ import annotations

from fanfold.errors import InvalidArgument


def refuse_mismatch(certificate: bytes, key: bytes) -> None:
    """Raise InvalidArgument unless certificate and key, in PEM, belong together, as they do not while both change."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - only for TLS
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415

    try:
        its_key = load_pem_x509_certificates(certificate)[0].public_key()
        is_pair = its_key == load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError):  # whose text may have the key
        raise InvalidArgument("must be a certificate and its key without a password, in PEM") from None
    if not is_pair:
        raise InvalidArgument("the key is not the certificate's")


def refuse_no_certificates(pem: bytes) -> None:
    """Raise InvalidArgument unless there are certificates of an authority, in PEM."""
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - only for TLS

    try:
        load_pem_x509_certificates(pem)
    except ValueError:
        raise InvalidArgument("must be CA certificates, in PEM") from None


def first_expiry(pem: bytes) -> float:
    """When the first of the certificates expires, in seconds since 1970. Raises InvalidArgument if there is none."""
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - only for TLS

    try:
        return min(each.not_valid_after_utc.timestamp() for each in load_pem_x509_certificates(pem))
    except ValueError:
        raise InvalidArgument("must be certificates, in PEM") from None
