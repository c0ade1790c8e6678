"""What every service tells of itself: what runs, who was refused, and when certificates expire."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509

import fanfold
from fanfold.model.principal import Role
from fanfold.rpc.auth.tokens import create_token
from support.authority import Authority
from support.doors import door
from support.scrapes import scrape, until_told

EXPIRY = "fanfold_certificate_expiry_timestamp_seconds"
REFUSED = "fanfold_authentication_failures_total"


def expiry_of(file: Path) -> float:
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()


@pytest.mark.contract("C40")
async def test_refused_calls_are_counted_by_why_and_admitted_ones_are_not(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    _, caller = create_token(tokens, "alice", frozenset({Role.CALLER}), None)
    _, producer = create_token(tokens, "p1", frozenset({Role.PRODUCER}), None)
    async with door(auth={"tokens": tokens}) as at:
        before = await scrape(at.metrics)
        assert before.value(REFUSED, reason="unauthenticated") == 0
        await at.knock_with(caller)
        for token in ("", "made-up", "fft_made-up"):
            with pytest.raises(grpc.aio.AioRpcError):
                await at.knock_with(token)
        with pytest.raises(grpc.aio.AioRpcError):
            await at.knock_with(producer)
        after = await scrape(at.metrics)
        assert after.value(REFUSED, reason="unauthenticated") == 3
        assert after.value(REFUSED, reason="forbidden") == 1
        assert after.value(REFUSED, reason="expired") == 0
        told = after.text
        assert not any(name in told for name in ("alice", "p1", "made-up"))


@pytest.mark.contract("C40")
async def test_when_certificates_expire_is_told_also_once_they_are_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server", lasts=timedelta(days=20))
    tls = {"certificate": pair.certificate, "key": pair.key, "client_ca": authority.file}
    rules = [{"match": "CN=*", "principal": "{}", "roles": ["caller"]}]
    async with door(auth={"certificates": rules}, tls=tls) as at:
        told = await scrape(at.metrics)
        assert told.value(EXPIRY, use="server") == expiry_of(pair.certificate)
        assert told.value(EXPIRY, use="client_ca") == expiry_of(authority.file)
        assert told.value(EXPIRY, use="client") is None
        authority.pair("server", lasts=timedelta(days=90))
        await until_told(at.metrics, EXPIRY, expiry_of(pair.certificate), use="server")


async def test_what_runs_and_its_process_are_told_without_tls_too() -> None:
    async with door() as at:
        told = await scrape(at.metrics)
        assert told.total("fanfold_build_info", version=fanfold.__version__) == 1
        assert told.total("process_resident_memory_bytes") > 1_000_000
        assert not any(family.samples for family in told.families if family.name == EXPIRY)
