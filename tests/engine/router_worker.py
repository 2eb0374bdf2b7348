# SPDX-License-Identifier: Apache-2.0
"""A server that is healthy and has one model: all that a router asks of a worker."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(_MODELS).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
