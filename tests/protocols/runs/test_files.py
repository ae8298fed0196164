"""Responses with recorded files, whose names, types and contents a guest chose."""

from __future__ import annotations

import base64

import pytest

from hutch.http.errors import ApiError
from hutch.protocols.runs.files import file_response


def recorded(name: str, mime_type: str, data: bytes) -> dict[str, object]:
    return {"name": name, "mime_type": mime_type, "size": len(data), "data": base64.b64encode(data).decode()}


def test_image_can_be_shown_and_runs_no_scripts() -> None:
    response = file_response([recorded("a b.svg", "image/svg+xml", b"<svg/>")], "a b.svg")
    assert (response.media_type, response.body) == ("image/svg+xml", b"<svg/>")
    assert "sandbox" in response.headers["content-security-policy"]
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.svg"


@pytest.mark.parametrize("mime_type", ["text/html", "text/javascript", "application/pdf", "image/x-unknown"])
def test_other_files_are_only_downloaded(mime_type: str) -> None:
    response = file_response([recorded("x", mime_type, b"<script>")], "x")
    assert response.media_type == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_file_that_was_not_recorded_is_not_found() -> None:
    with pytest.raises(ApiError, match="no recorded file"):
        file_response([], "x")
    with pytest.raises(ApiError, match="max_record_bytes"):
        file_response([{"name": "x", "mime_type": "text/plain", "size": 10_000_000}], "x")
