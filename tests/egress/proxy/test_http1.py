from __future__ import annotations

import time

import pytest

from hutch.egress.proxy.http1 import BadMessage, BodyFraming, read_request, read_response


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def test_connect_request_has_host_and_port() -> None:
    request = read_request(head("CONNECT api.example.com:443 HTTP/1.1", "Host: elsewhere"))
    assert (request.is_tunnel, request.host, request.port) == (True, "api.example.com", 443)
    assert read_request(head("CONNECT [::1]:80 HTTP/1.1")).host == "[::1]"


def test_request_is_forwarded_without_hop_by_hop_headers() -> None:
    request = read_request(
        head(
            "POST http://Example.com:8080?q=1#part HTTP/1.1",
            "Host: other.example",
            "connection: keep-alive, X-Mine",
            "Keep-Alive: 5",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic x",
            "TE: trailers",
            "Upgrade: h2c",
            "X-Mine: 1",
            "Accept:\t*/* ",
            "Content-Length: 3",
        )
    )
    assert (request.is_tunnel, request.host, request.port) == (False, "Example.com", 8080)
    assert request.head == (
        b"POST /?q=1 HTTP/1.1\r\nHost: Example.com:8080\r\nAccept: */*\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )


def test_web_socket_upgrade_is_forwarded() -> None:
    lines = ("GET http://a/ HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    request = read_request(head(*lines))
    assert request.is_upgrade
    assert request.head.endswith(b"Sec-WebSocket-Key: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET http://a/ HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"], 400),
        (["GET http://a/ HTTP/1.1", "Content-Length: 1", "Content-Length: 1"], 400),
        (["GET http://a/ HTTP/1.1", "Content-Length: 1, 1"], 400),
        (["GET http://a/ HTTP/1.1", "Content-Length: +1"], 400),
        (["GET http://a/ HTTP/1.1", "Content-Length: 0x1"], 400),
        (["GET http://a/ HTTP/1.1", "Content-Length: "], 400),
        (["GET http://a/ HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
        (["GET http://a/ HTTP/1.1", "Transfer-Encoding: gzip, chunked"], 501),
        (["GET http://a/ HTTP/1.1", "Transfer-Encoding: xchunked"], 501),
        (["GET http://a/ HTTP/1.0", "Transfer-Encoding: chunked"], 400),
        (["GET http://a/ HTTP/1.1", "Transfer-Encoding : chunked"], 400),
        (["GET http://a/ HTTP/1.1", "X: 1", " folded"], 400),
        (["GET http://a/ HTTP/1.1", "X: 1\nY: 2"], 400),
        (["GET http://a/ HTTP/1.1", "X: 1\rY: 2"], 400),
        (["GET http://a/ HTTP/1.1", "X: \0"], 400),
        (["GET http://a/ HTTP/1.1", ": 1"], 400),
        (["GET http://a/ HTTP/1.1", "no colon"], 400),
        (["GET http://a/ HTTP/1.1", *["X: 1"] * 300], 431),
        (["GET http://a/ HTTP/2.0"], 505),
        (["GET  http://a/ HTTP/1.1"], 400),
        (["GET http://a/ b HTTP/1.1"], 400),
        (["GET http://a/"], 400),
        (["G(T http://a/ HTTP/1.1"], 400),
        (["GET / HTTP/1.1", "Host: a"], 400),
        (["GET https://a/ HTTP/1.1"], 400),
        (["GET ftp://a/ HTTP/1.1"], 400),
        (["GET http:/a/ HTTP/1.1"], 400),
        (["GET http:///x HTTP/1.1"], 400),
        (["GET http://:80/ HTTP/1.1"], 400),
        (["GET http://user:pw@a/ HTTP/1.1"], 400),
        (["GET http://a:b:80/ HTTP/1.1"], 400),
        (["GET http://a:123456/ HTTP/1.1"], 400),
        (["OPTIONS * HTTP/1.1"], 400),
        (["CONNECT a HTTP/1.1"], 400),
        (["CONNECT a: HTTP/1.1"], 400),
        (["CONNECT a:443/ HTTP/1.1"], 400),
        (["CONNECT :443 HTTP/1.1"], 400),
        ([""], 400),
    ],
)
def test_ambiguous_request_is_rejected(lines: list[str], status: int) -> None:
    with pytest.raises(BadMessage) as caught:
        read_request(head(*lines))
    assert caught.value.status == status


def test_malicious_head_is_parsed_quickly() -> None:
    began = time.process_time()
    for filler in (" ", "\t ", "a", ":", ","):
        with pytest.raises(BadMessage):
            read_request(head("GET http://a/ HTTP/1.1", "X:" + filler * 30_000 + "\0"))
    assert time.process_time() - began < 1


def fed(body: BodyFraming, data: bytes, size: int) -> tuple[bytes, bool]:
    taken = b""
    for at in range(0, len(data), size):
        taken += data[at : at + size][: body.feed(data[at : at + size])]
    return taken, body.done


CHUNKED = b"3\r\nabc\r\n00A ;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_end_of_body_does_not_depend_on_piece_size(size: int) -> None:
    assert fed(BodyFraming(None), CHUNKED + b"GET / HTTP/1.1", size) == (CHUNKED, True)
    assert fed(BodyFraming(None), CHUNKED[:-1], size) == (CHUNKED[:-1], False)
    assert fed(BodyFraming(5), b"0123456789", size) == (b"01234", True)
    assert fed(BodyFraming(0), b"0123456789", size) == (b"", True)


@pytest.mark.parametrize(
    "data",
    [
        *(b"x\r\n", b"\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"1\na\r\n", b"1\r\nab", b"1\r\na\n"),
        *(b"1 1\r\n", b"F" * 16 + b"\r\n", b"1;\0\r\n", b"0\r\nno colon\r\n", b"1;" + b"x" * 5000),
    ],
)
def test_invalid_chunk_is_rejected(data: bytes) -> None:
    with pytest.raises(BadMessage):
        BodyFraming(None).feed(data + b"\r\n\r\n")


def test_response_closes_the_connection_and_has_no_proxy_headers() -> None:
    given = head("HTTP/1.1 200 OK", "Connection: keep-alive", "X-Hutch-Egress: refused", "Content-Length: 1")
    assert read_response(given, is_upgrade=False) == (
        200,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
    )


@pytest.mark.parametrize("lines", [["ICY 200 OK"], ["HTTP/1.1 2000 OK"], ["HTTP/1.1 200 OK", "x"]])
def test_invalid_response_is_rejected(lines: list[str]) -> None:
    with pytest.raises(BadMessage):
        read_response(head(*lines), is_upgrade=False)


def test_unrequested_protocol_switch_is_rejected() -> None:
    switch = head("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket")
    assert read_response(switch, is_upgrade=True)[0] == 101
    with pytest.raises(BadMessage, match="without being asked"):
        read_response(switch, is_upgrade=False)
