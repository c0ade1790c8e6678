"""Tells the keys of a cluster's tokens, as its API server does: over TLS, and to those alone who show a token.

Its one argument is a folder: `cluster.pem` and `cluster.key`, `jwks.json`, and `api.token` with what is to be shown.
"""

from __future__ import annotations

import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])


class Keys(BaseHTTPRequestHandler):
    """Answers one question."""

    def do_GET(self) -> None:
        """Tell the keys."""
        if self.headers["Authorization"] != f"Bearer {(FOLDER / 'api.token').read_text()}":
            self.send_error(403)
        elif self.path != "/openid/v1/jwks":
            self.send_error(404)
        else:
            body = (FOLDER / "jwks.json").read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tell nobody."""


if __name__ == "__main__":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FOLDER / "cluster.pem", FOLDER / "cluster.key")
    with ThreadingHTTPServer(("127.0.0.1", 443), Keys) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        print("ready", flush=True)
        server.serve_forever()
