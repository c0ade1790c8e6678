"""An issuer of JSON Web Tokens, with a real HTTP server for its keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://id.example.org"
AUDIENCE = "fanfold"


class TestIssuer:
    """Signs tokens with its newest key, and tells its public keys."""

    __test__ = False

    def __init__(self, algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        self.keys: dict[str, Any] = {}
        self.asked = 0
        """How often its keys were asked for over HTTP."""
        self.delay = 0.0
        """Seconds until it answers."""
        self.wants_token = ""
        """The token without which it tells no keys."""
        self.rotate()

    def rotate(self, *, keep: bool = True) -> str:
        """Sign with a new key from now on; the former are still told unless they are not to be kept."""
        if not keep:
            self.keys.clear()
        name = f"key-{time.monotonic_ns()}"
        self.keys[name] = (
            ec.generate_private_key(ec.SECP256R1())
            if self.algorithm == "ES256"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )
        return name

    def jwks(self) -> dict[str, Any]:
        """Its public keys."""
        kind: Any = ECAlgorithm if self.algorithm == "ES256" else RSAAlgorithm
        return {
            "keys": [
                {**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig"}
                for name, key in self.keys.items()
            ]
        }

    def token(self, headers: dict[str, Any] | None = None, /, **claims: Any) -> str:
        """A token of alice, valid for an hour, but for what is said; None leaves a claim out."""
        now = int(time.time())
        all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600, **claims}
        told = {name: claim for name, claim in all_claims.items() if claim is not None}
        key_id, key = list(self.keys.items())[-1]
        return jwt.encode(told, key, self.algorithm, {"kid": key_id, **(headers or {})})

    @contextmanager
    def served(self, port: int = 0) -> Iterator[str]:
        """The URL of its keys while the block lasts; port 0 takes a free one."""
        issuer = self

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                time.sleep(issuer.delay)
                if issuer.wants_token and self.headers["Authorization"] != f"Bearer {issuer.wants_token}":
                    self.send_error(401)
                    return
                if self.path != "/keys":
                    self.send_response(302)
                    self.send_header("Location", "/keys")
                    self.end_headers()
                    return
                body = json.dumps(issuer.jwks()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", port), Keys) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/keys"
            finally:
                server.shutdown()
                thread.join()
