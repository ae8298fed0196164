"""A shop API for trying flows without a network: `python3 shop.py 8098`.

It is unreliable on purpose: it answers the first request with 503, and rejects orders until `POST /open`.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "Bearer tok-0123456789abcdef"
STOCK = [{"article": "lamp", "left": 2}, {"article": "chair", "left": 40}, {"article": "desk", "left": 0}]
orders: list[object] = []
requests: list[str] = []


class Shop(BaseHTTPRequestHandler):
    is_open = False

    def do_GET(self) -> None:
        requests.append(self.path)
        if self.path == "/asked":
            self.answer(200, {"asked": requests[:-1], "orders": orders})
        elif requests.count(self.path) == 1:
            self.answer(503, {"message": "a moment, please"})
        else:
            self.answer(200, STOCK)

    def do_POST(self) -> None:
        requests.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/open":
            Shop.is_open = True
            self.answer(200, {"open": True})
        elif not Shop.is_open:
            self.answer(503, {"message": "the shop is closed"})
        elif self.headers["Authorization"] != TOKEN:
            self.answer(401, {"message": "invalid token"})
        else:
            orders.append(json.loads(body))
            self.answer(200, {"number": len(orders)})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
