"""An API for trying abilities without a network: `python3 api.py 8099`.

It requires a token, and carelessly repeats it in its responses.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "Bearer tok-0123456789abcdef"


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        token = self.headers["Authorization"]
        name = self.path.rpartition("/")[2]
        if token == TOKEN:
            status, value = 200, {"name": name.title(), "followers_count": 42, "you_sent": token}
        else:
            status, value = 401, {"message": "invalid token"}
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
