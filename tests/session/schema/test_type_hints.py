from __future__ import annotations

import dataclasses
import datetime
import enum
import http.server
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions

from hutch.errors import InvalidTool
from hutch.session.schema.type_hints import (
    Field,
    Mismatch,
    Shape,
    is_model,
    object_shape,
    read_docstring,
    result_schema,
    single_value_shape,
    validator,
)


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclasses.dataclass
class Place:
    lat: float
    inside: Place | None = None


@dataclasses.dataclass
class Road:
    name: str


class Options(TypedDict, total=False):
    limit: int


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class User(pydantic.BaseModel):
    name: str = pydantic.Field(description="The full name")
    age: int = pydantic.Field(ge=0, default=1)
    friends: list[User] = []


class Robot(pydantic.BaseModel):
    serial: int


class Team(msgspec.Struct):
    lead: User


class Group(TypedDict):
    lead: User


class Modern(typing_extensions.TypedDict):
    lead: User


@dataclasses.dataclass
class Crew:
    lead: User


class Grid(NamedTuple):
    x: int
    y: int


class Bare:
    pass


def field(hint: Any, name: str = "p", **rest: Any) -> Field:
    return Field(name, hint, "default" not in rest, **rest)


def shape_of(hint: Any) -> Shape:
    return single_value_shape(field(hint), "Tool t")


def property_of(shape: Shape, name: str = "p") -> Any:
    return shape.schema["properties"][name]


COUNTED = {"type": "integer", "minimum": 1, "description": "Many"}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (float | None, {"anyOf": [{"type": "number"}, {"type": "null"}]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Any, {}),
        (datetime.date, {"type": "string", "format": "date"}),
        (Annotated[int, msgspec.Meta(ge=1, description="Many")], COUNTED),
        (Annotated[int, pydantic.Field(ge=1, description="Many")], COUNTED),
    ],
    ids=str,
)
def test_hints_become_json_schema(hint: Any, schema: Any) -> None:
    assert shape_of(hint).schema == schema


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (Unit, "k", Unit.KELVIN),
        (Place, {"lat": 1, "inside": {"lat": 2.5}}, Place(1.0, Place(2.5))),
        (Options, {"limit": 3}, {"limit": 3}),
        (Cat | Dog, {"type": "dog", "name": "Rex"}, Dog("Rex")),
        (Place | Road, {"name": "A1"}, Road("A1")),
        (User, {"name": "Ann", "friends": [{"name": "Bo"}]}, User(name="Ann", friends=[User(name="Bo")])),
        (User | Robot, {"serial": 7}, Robot(serial=7)),
        (list[User] | None, [{"name": "Ann"}], [User(name="Ann")]),
        (dict[str, Place], {"a": {"lat": 0}}, {"a": Place(0.0)}),
        (Team, {"lead": {"name": "Ann"}}, Team(User(name="Ann"))),
        (Group, {"lead": {"name": "Ann"}}, {"lead": User(name="Ann")}),
        (Modern, {"lead": {"name": "Ann"}}, {"lead": User(name="Ann")}),
        (Crew, {"lead": {"name": "Ann"}}, Crew(User(name="Ann"))),
        (Grid, [1, 2], Grid(1, 2)),
        (dict[str, object], {"a": [None, {"b": 1}]}, {"a": [None, {"b": 1}]}),
        (datetime.datetime, "2020-01-02T03:00:00Z", datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC)),
    ],
    ids=str,
)
def test_models_are_converted_and_their_schema_accepts_the_same_values(
    hint: Any, value: Any, converted: Any
) -> None:
    shape = shape_of(hint)
    assert shape.convert(value) == converted
    assert validator(shape.schema)(value) is None


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (int, "1", "Expected `int`, got `str`"),
        (int, True, "Expected `int`, got `bool`"),
        (Place, {"lat": 1, "inside": {"lat": "x"}}, "Expected `float`, got `str` - at `$.inside.lat`"),
        (User, {"name": "A", "friends": [{}]}, "Field required - at `$.friends[0].name`"),
        (Team, {"lead": {"name": 5}}, "Input should be a valid string - at `$.lead.name`"),
        (Annotated[int, pydantic.Field(ge=3)], 1, "Input should be greater than or equal to 3"),
        (Literal["a"], "\ud800", "Expected well-formed Unicode"),
    ],
)
def test_mismatch_names_path_and_expected_type_on_one_line(hint: Any, value: Any, reason: str) -> None:
    with pytest.raises(Mismatch) as caught:
        shape_of(hint).convert(value)
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


def test_parameters_are_the_properties_of_a_closed_object() -> None:
    shape = object_shape([field(int, "a"), field(Unit, "unit", default=Unit.CELSIUS)], "Tool t")
    assert shape.schema["required"] == ["a"]
    assert shape.schema["additionalProperties"] is False
    assert property_of(shape, "unit")["default"] == "c"
    assert shape.convert({"a": 1}) == (1, Unit.CELSIUS)
    assert shape.convert({"unit": "k", "a": 2}) == (2, Unit.KELVIN)
    with pytest.raises(Mismatch, match="unknown field `b`"):
        shape.convert({"a": 1, "b": 2})
    with pytest.raises(Mismatch, match="missing required field `a`"):
        shape.convert({})


def test_missing_input_is_an_empty_object_if_nothing_is_required() -> None:
    assert object_shape([field(int, default=5)], "Tool t").convert(None) == (5,)
    assert object_shape([], "Tool t").convert(None) == ()
    with pytest.raises(Mismatch, match="got `null`"):
        object_shape([field(int)], "Tool t").convert(None)


def test_defaults_are_passed_unchanged_and_shown_only_if_they_are_json() -> None:
    sentinel, shared = object(), [1]
    fields = [
        field(int, "a", default=sentinel),
        field(list[int], "b", default=shared),
        field(User | None, "c", default=sentinel),
    ]
    shape = object_shape(fields, "Tool t")
    a, b, c = shape.convert({})
    assert a is sentinel
    assert b is shared
    assert c is sentinel
    assert "default" not in property_of(shape, "a")
    assert property_of(shape, "b")["default"] == [1]


def test_pydantic_and_msgspec_parameters_can_be_mixed() -> None:
    shape = object_shape([field(User, "user"), field(Cat | None, "pet"), field(Place | Road, "at")], "Tool t")
    assert set(shape.schema["$defs"]) == {"User", "Cat", "Place", "Road"}
    value = {"user": {"name": "Ann"}, "pet": {"type": "cat", "lives": 9}, "at": {"lat": 1}}
    assert shape.convert(value) == (User(name="Ann"), Cat(9), Place(1.0))
    assert validator(shape.schema)(value) is None
    with pytest.raises(Mismatch, match=r"- at `\$\.user\.name`"):
        shape.convert({**value, "user": {"name": 1}})


def test_two_types_with_the_same_name_stay_separate() -> None:
    class User(msgspec.Struct):
        points: int

    shape = object_shape([field(globals()["User"], "a"), field(list[User], "b")], "Tool t")
    check = validator(shape.schema)
    assert check({"a": {"name": "Ann"}, "b": [{"points": 1}]}) is None
    assert check({"a": {"points": 1}, "b": [{"points": 1}]}) is not None
    assert check({"a": {"name": "Ann"}, "b": [{"name": "Ann"}]}) is not None


def test_properties_named_like_keywords_keep_their_references() -> None:
    shape = object_shape([field(Place, "default"), field(Place, "enum")], "Tool t")
    assert property_of(shape, "default") == {"$ref": "#/$defs/Place"}
    assert validator(shape.schema)({"default": {"lat": 1}, "enum": {}}) is not None


@pytest.mark.parametrize("hint", [Bare, Callable[[int], int], type, list[Bare], Bare | None, 5])
def test_unsupported_hint_is_refused_with_function_parameter_and_remedy(hint: Any) -> None:
    with pytest.raises(
        InvalidTool, match=r"^Tool t: parameter `p` has a hint that cannot .*explicit schema\.$"
    ):
        object_shape([field(hint)], "Tool t")
    with pytest.raises(
        InvalidTool, match=r"^Tool t: the return hint cannot be JSON Schema: .*explicit schema"
    ):
        result_schema(hint, "Tool t")


@pytest.mark.parametrize("hint", [None, Any, object])
def test_return_hint_without_information_has_no_schema(hint: Any) -> None:
    assert result_schema(hint, "Tool t") is None


def test_return_hint_none_has_the_schema_null() -> None:
    assert result_schema(type(None), "Tool t") == {"type": "null"}


def test_returned_model_has_its_serialization_schema() -> None:
    class Reply(pydantic.BaseModel):
        text: str = pydantic.Field(serialization_alias="body")

        @pydantic.computed_field
        def size(self) -> int:
            return len(self.text)

    schema = result_schema(Reply, "Tool t")
    assert schema is not None
    assert set(schema["properties"]) == {"body", "size"}


@pytest.mark.parametrize("hint", [Place, Options, Modern, Cat, User, Annotated[User, "x"]])
def test_models_are_recognized(hint: Any) -> None:
    assert is_model(hint)


@pytest.mark.parametrize(
    "hint", [int, dict, dict[str, int], list[User], User | None, Grid, Any, Bare, Unit], ids=str
)
def test_other_hints_are_not_models(hint: Any) -> None:
    assert not is_model(hint)


GOOGLE = """Find places.

    In two lines.

    Args:
        name (str): What it is
            called.
        near: Where: roughly.

    Returns:
        name: not a parameter
    """
NUMPY = """Find places.

    In two lines.

    Parameters
    ----------
    name : str
        What it is
        called.
    near : int, optional
        Where: roughly.

    Returns
    -------
    list
    """
SPHINX = """Find places.

    In two lines.

    :param str name: What it is
        called.
    :param near: Where: roughly.
    :returns: a list
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_describes_the_function_and_its_parameters(doc: str) -> None:
    assert read_docstring(doc) == (
        "Find places.\n\nIn two lines.",
        {"name": "What it is called.", "near": "Where: roughly."},
    )


def test_empty_docstring_has_no_description() -> None:
    assert read_docstring(None) == (None, {})
    assert read_docstring("  \n ") == (None, {})


@pytest.mark.parametrize(
    ("doc", "description", "parameters"),
    [
        ("Adds.", "Adds.", {}),
        (":param a: One.", None, {"a": "One."}),
        ("Adds.\n\nArgs:\n    *a: One.\n    **b (dict): Two.", "Adds.", {"a": "One.", "b": "Two."}),
        ("Adds.\n\nAttributes:\n    a: Not a parameter.\n", "Adds.", {}),
        ("Adds.\n\nArgs:\n    a:\n    b: Two.", "Adds.", {"b": "Two."}),
        ("Adds.\n\nArgs:\n    no parameter", "Adds.\n\nArgs:\n    no parameter", {}),
        (":param", ":param", {}),
    ],
)
def test_docstring_forms(doc: str, description: str | None, parameters: dict[str, str]) -> None:
    assert read_docstring(doc) == (description, parameters)


# --- explicit schemas ---


def test_validation_error_is_one_line_with_path_and_expected_value() -> None:
    check = validator(
        {"type": "object", "properties": {"a b": {"type": "array", "items": {"type": "integer"}}}}
    )
    assert check({"a b": [1]}) is None
    assert check({"a b": [1, "x\ny"]}) == '"x\\ny" is not of type "integer" - at `$[\'a b\'][1]`'
    long = check({"a b": ["x" * 100_000]})
    assert long is not None
    assert len(long) < 500


def test_draft_is_2020_12_unless_the_schema_says_otherwise() -> None:
    tuples = {"prefixItems": [{"type": "integer"}]}
    assert validator(tuples)(["x"]) is not None
    assert validator({"$schema": "http://json-schema.org/draft-07/schema#", **tuples})(["x"]) is None


@pytest.mark.parametrize(
    "schema",
    [{"type": "objekt"}, {"pattern": "("}, {"$schema": "http://127.0.0.1/x"}, {"$ref": "#/$defs/no"}, 5],
)
def test_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidTool, match="Invalid JSON Schema at `"):
        validator(schema)


def test_endless_schema_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["not"] = loop
    with pytest.raises(InvalidTool, match="Invalid JSON Schema"):
        validator(loop)


def test_no_reference_is_ever_fetched_from_the_network() -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "integer"}')

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}"
            for schema in (
                {"$ref": f"{base}/a.json"},
                {"$id": f"{base}/root.json", "properties": {"x": {"$ref": "b.json"}}},
                {"$schema": f"{base}/meta.json"},
                {"properties": {"x": {"$dynamicRef": f"{base}/c.json#x"}}},
            ):
                with pytest.raises(InvalidTool, match="Invalid JSON Schema"):
                    validator(schema)
        finally:
            server.shutdown()
            thread.join()
    assert asked == []


def test_no_reference_is_ever_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    for schema in ({"$ref": file.as_uri()}, {"$id": file.as_uri(), "items": {"$ref": "schema2.json"}}):
        with pytest.raises(InvalidTool, match="Invalid JSON Schema"):
            validator(schema)


def test_lone_surrogates_count_as_characters_in_validation() -> None:
    check = validator({"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}})
    assert check({"\ud800": "\ud800"}) is None
    assert check({"a": "\ud800x"}) is not None


def test_pydantic_and_jsonschema_are_imported_only_when_needed() -> None:
    code = """
import sys
from hutch.session.tools.provider import Provider
async def add(a: int, b: int = 2): return a + b
Provider.of(add).manifest()
print([name for name in ("pydantic", "jsonschema_rs") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_pydantic_hints_that_need_it_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert shape_of(Place).convert({"lat": 1}) == Place(1.0)
    with pytest.raises(InvalidTool, match=r"parameter `p` has a hint that cannot be JSON Schema: .*Place"):
        shape_of(Place | Road)
