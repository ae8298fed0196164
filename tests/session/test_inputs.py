"""Encoding of inputs."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.errors import InvalidExecution
from hutch.session.inputs import MAX_INPUTS, encode_decoded_inputs, encode_inputs
from hutch.session.json_value import decode_value


@pytest.mark.parametrize(
    "inputs",
    [{}, {"x": [1, 2.5, None, True, {"é": "é"}]}, {"x": "\ud800"}, {"x": 2**70}, {"x": 1e300}],
)
def test_decoded_values_are_encoded_like_others(inputs: dict[str, Any]) -> None:
    encoded, expected = encode_decoded_inputs(inputs, ()), encode_inputs(inputs)
    assert (encoded is None) == (expected is None) == (not inputs)
    if encoded is not None and expected is not None:
        assert decode_value(encoded) == decode_value(expected)


def test_number_of_names_is_limited() -> None:
    with pytest.raises(InvalidExecution, match=f"at most {MAX_INPUTS} names"):
        encode_decoded_inputs(dict.fromkeys(map("x{}".format, range(MAX_INPUTS + 1))), ())
