"""Values to JSON text and back."""

from __future__ import annotations

import json
import math
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from typing import Any, ClassVar, Dict, Generic, List, Literal, NewType, Optional, Tuple, TypedDict, TypeVar, Union  # noqa: UP035 - old
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuert.codec import MAX_DEPTH, CodecError, codec_for, dump_json, has_nul, load_json

pytestmark = pytest.mark.conformance

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Access(IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Item:
    name: str
    price: Decimal
    colour: Colour | None = None


@dataclass
class Order:
    order_id: int
    items: list[Item]
    placed_at: datetime
    day: date
    at: time
    takes: timedelta
    reference: UUID
    weight: float
    notes: dict[str, str] = field(default_factory=dict)
    parent: Order | None = None
    pair: tuple[int, str] = (0, "")
    tags: tuple[str, ...] = ()
    level: Level = Level.LOW
    size: Literal["s", "l", 3] = "s"
    user: UserId = UserId(0)
    anything: Any = None
    computed: int = field(init=False, default=1)
    constant: ClassVar[int] = 5


def order(**changes: Any) -> Order:
    values: dict[str, Any] = {
        "order_id": 1,
        "items": [Item("pen", Decimal("1.50"), Colour.RED), Item("ink", Decimal(2))],
        "placed_at": datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=timezone.utc),
        "day": date(2024, 5, 6),
        "at": time(7, 8),
        "takes": timedelta(minutes=1, microseconds=5),
        "reference": UUID(int=7),
        "weight": 2.5,
    }
    return Order(**{**values, **changes})


def round_trip(annotation: Any, value: Any) -> Any:
    codec = codec_for(annotation)
    return codec.decode(codec.encode(value))


def problem(annotation: Any, value: Any) -> str:
    with pytest.raises(CodecError) as raised:
        codec_for(annotation).encode(value)
    return str(raised.value)


def decode_problem(annotation: Any, data: Any) -> str:
    with pytest.raises(CodecError) as raised:
        codec_for(annotation).decode(json.dumps(data))
    return str(raised.value)


def test_a_nested_dataclass_comes_back_as_it_was() -> None:
    value = order(parent=order(pair=(3, "x"), tags=("a", "b"), level=Level.HIGH, size=3, anything={"k": [1, None]}))
    assert round_trip(Order, value) == value
    assert "computed" not in codec_for(Order).encode(value)


def test_the_text_is_compact_and_readable() -> None:
    assert codec_for(Item).encode(Item("é", Decimal("1.50"))) == '{"name":"é","price":"1.50","colour":null}'
    assert dump_json({"a": [1, 2.5, True, None, "x"]}) == '{"a":[1,2.5,true,null,"x"]}'


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, 10**40),
        (str, "a\x00b"),
        (bool, True),
        (None, None),
        (type(None), None),
        (Optional[int], None),
        (int | None, 4),
        (Union[int, str, None], "x"),
        (int | str, 3),
        (list[int] | None, [1]),
        (list, [1, {"a": None}]),
        (dict, {"a": [1]}),
        (List[int], [1]),  # noqa: UP006 - the old names work too
        (Dict[str, int], {"a": 1}),  # noqa: UP006 - the old names work too
        (Tuple[int, ...], (1, 2)),  # noqa: UP006 - the old names work too
        (tuple, (1, "a")),
        (tuple[()], ()),
        (Sequence[int], [1]),
        (Mapping[str, int], {"a": 1}),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[UUID, int], {UUID(int=1): 1}),
        (dict[Any, int], {"a": 1}),
        (Colour, Colour.BLUE),
        (Level, Level.HIGH),
        (Access, Access.READ | Access.WRITE),
        (Literal["a", 1, None], None),
        (Literal[Colour.RED], Colour.RED),
        (Colour | Literal["none"], "none"),
        (Colour | Literal["none"], Colour.RED),
        (Decimal | int, 3),
        (Decimal | int, Decimal(3)),
        (list[int] | list[str], ["a"]),
        (list[int] | dict[str, int], {"a": 1}),
        (typing.Annotated[int, "meta"], 1),
        (timedelta, timedelta(days=-3)),
        (datetime, datetime(2024, 1, 1, 12)),
        (datetime, datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30)))),
        (time, time(1, 2, 3, tzinfo=timezone.utc)),
        (UserId, 5),
    ],
)
def test_a_value_of_the_declared_type_comes_back(annotation: Any, value: Any) -> None:
    result = round_trip(annotation, value)
    assert result == value
    assert type(result) is type(value)


def test_ints_stay_ints_beside_floats_and_become_floats_where_a_float_is_declared() -> None:
    assert type(round_trip(float | int, 3)) is int
    assert type(round_trip(int | float, 3.0)) is float
    assert type(round_trip(float, 3)) is float
    assert codec_for(float).decode("3") == 3.0


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, True, "expected a whole number, got bool"),
        (int, 1.0, "expected a whole number, got float"),
        (int, "1", "expected a whole number, got str"),
        (float, True, "expected a number, got bool"),
        (float, math.nan, "expected a number, got nan"),
        (float, math.inf, "expected a number, got inf"),
        (float, 10**400, "expected a number, got one that is too large"),
        (str, b"x", "expected text, got bytes"),
        (bool, 1, "expected a bool, got int"),
        (None, 0, "expected None, got int"),
        (int | None, "x", "expected a whole number, got str"),
        (int | str, [], "expected a whole number or text, got list"),
        (list[int], {1}, "expected a list, got set"),
        (list[list[int]], [[1], [2, "x"]], "[1][1]: expected a whole number, got str"),
        (dict[str, int], {"a": 1, "b": None}, "b: expected a whole number, got NoneType"),
        (dict[str, int], {1: 1}, "1: expected text, got int"),
        (tuple[int, str], (1,), "expected a tuple of 2, got 1"),
        (tuple[int, str], (1, 2), "[1]: expected text, got int"),
        (Colour, "red", "expected a Colour, got str"),
        (Literal["a", 1], True, "expected 'a' or 1, got True"),
        (Literal["a", 1], [], "expected 'a' or 1, got []"),
        (date, datetime(2024, 1, 1), "expected a date, got datetime"),
        (datetime, date(2024, 1, 1), "expected a datetime, got date"),
        (Decimal, Decimal("NaN"), "expected a finite Decimal, got NaN"),
        (timedelta, 5, "expected a timedelta, got int"),
        (timedelta, timedelta.max, "expected a timedelta, got one too long to keep its microseconds"),
        (Item, 5, "expected an Item, got int"),
        (Item, None, "expected an Item, got NoneType"),
        (Order, order(items=[Item("a", Decimal(1)), Item("b", 2.0)]), "items[1].price: expected a Decimal, got float"),  # type: ignore[arg-type]  # wrong on purpose
        (Order, order(anything={"a": {1, 2}}), "anything.a: a set is not JSON; declare its type, or convert it"),
        (Order, order(parent=order(weight="x")), "parent.weight: expected a number, got str"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_its_path(annotation: Any, value: Any, message: str) -> None:
    assert problem(annotation, value) == message


def test_decoding_says_what_is_missing_unknown_or_malformed() -> None:
    assert decode_problem(Item, {"name": "a"}) == "missing 'price'"
    assert problem(Item, {"name": "a", "price": "1", "x": 1, "y": 2}) == "unknown 'x', 'y'"
    assert problem(Item, {"nmae": "a", "price": "1"}) == "missing 'name' ('nmae': did you mean 'name'?)"
    assert problem(Item, {"name": "a", "price": "1", "color": 1}) == "unknown 'color' ('color': did you mean 'colour'?)"
    assert decode_problem(Item, []) == "expected an Item, got list"
    assert decode_problem(Item, {"name": "a", "price": "one"}) == "price: expected a Decimal, got 'one'"
    assert decode_problem(Item, {"name": "a", "price": "NaN"}) == "price: expected a Decimal, got 'NaN'"
    assert decode_problem(Item, {"name": "a", "price": "1", "colour": "pink"}) == "colour: expected a Colour, got 'pink'"
    assert decode_problem(list[UUID], ["x"]) == "[0]: expected a UUID, got 'x'"
    assert decode_problem(datetime, 5) == "expected a datetime as text, got int"
    assert decode_problem(datetime, "soon") == "expected a datetime, got 'soon'"
    assert decode_problem(timedelta, True) == "expected a number of seconds, got bool"
    assert decode_problem(timedelta, 1e300) == "expected a number of seconds, got 1e+300"
    assert decode_problem(Level, True) == "expected a Level, got True"
    assert decode_problem(Level, {"a": 1}) == "expected a Level, got {'a': 1}"
    assert decode_problem(int | list[int], ["x"]) == "[0]: expected a whole number, got str"
    assert decode_problem(int | str, None) == "expected a whole number or text, got NoneType"


@dataclass
class Kitten:
    name: str


@dataclass
class Hound:
    name: str
    breed: str


class Basket(TypedDict):
    items: list[Item]
    pet: Kitten | Hound | None


def test_stored_fields_that_this_version_does_not_know_are_left_out() -> None:
    item = {"name": "a", "price": "1", "size": {"x": 1}}
    assert codec_for(Item).decode(json.dumps(item)) == Item("a", Decimal(1))
    stored = {"items": [item], "pet": {"name": "Tom", "breed": "?", "age": 7}, "new": None}
    assert codec_for(Basket).decode(json.dumps(stored)) == {"items": [Item("a", Decimal(1))], "pet": Hound("Tom", "?")}
    for pet, known in (({"name": "Tom"}, Kitten("Tom")), ({"name": "Tom", "age": 7}, Kitten("Tom"))):
        assert codec_for(Basket).decode(json.dumps({"items": [], "pet": pet}))["pet"] == known
    # What a caller gives is checked, however deep.
    assert problem(Basket, {"items": [item], "pet": None}) == "items[0]: unknown 'size'"
    assert "unknown 'new'" in problem(Basket, {"items": [], "pet": None, "new": 1})


def test_stored_fields_that_a_strict_model_does_not_know_are_left_out() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel, extra="forbid"):  # type: ignore[misc, name-defined]
        n: int

    class Outer(pydantic.BaseModel, extra="forbid"):  # type: ignore[misc, name-defined]
        inners: list[Inner]

    codec = codec_for(Outer)
    stored = {"inners": [{"n": 1}, {"n": 2, "new": 3}], "newer": 4}
    assert codec.decode(json.dumps(stored)) == Outer(inners=[Inner(n=1), Inner(n=2)])
    with pytest.raises(CodecError):
        codec.encode(stored)
    with pytest.raises(CodecError):
        codec.decode('{"inners": [{"n": "x", "new": 3}]}')


def test_a_field_with_a_default_may_be_missing_from_older_rows() -> None:
    assert codec_for(Item).decode('{"name":"a","price":"1"}') == Item("a", Decimal(1))


def test_a_dict_that_decodes_to_the_dataclass_is_taken_for_it() -> None:
    codec = codec_for(list[Item])
    assert codec.encode([{"name": "a", "price": "1"}]) == '[{"name":"a","price":"1","colour":null}]'
    assert problem(list[Item], [{"name": "a"}]) == "[0]: missing 'price'"


@dataclass
class Special(Item):
    extra: int = 0


@dataclass
class Alias(Item):
    pass


def test_a_subclass_is_taken_unless_it_would_lose_fields() -> None:
    assert round_trip(Item, Alias("a", Decimal(1))) == Item("a", Decimal(1))
    assert problem(Item, Special("a", Decimal(1))) == "expected an Item, got a Special, which would lose extra"


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise RuntimeError("negative")


def test_a_dataclass_that_refuses_its_values_is_a_codec_error() -> None:
    assert decode_problem(Positive, {"number": -1}) == "expected a Positive, but it refuses the values: negative"


def test_a_z_is_read_on_every_python() -> None:
    assert codec_for(datetime).decode('"2024-01-01T00:00:00Z"') == datetime(2024, 1, 1, tzinfo=timezone.utc)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


def test_a_type_may_contain_itself_but_a_value_may_not() -> None:
    tree = Tree(1, [Tree(2, [Tree(3)]), Tree(4)])
    assert round_trip(Tree, tree) == tree
    tree.children.append(tree)
    assert "nested too deep" in problem(Tree, tree)


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


@dataclass
class Crate(Generic[T]):
    box: Box[list[T]]


@dataclass
class IntBox(Box[int]):
    pass


def test_generic_dataclasses_check_their_argument() -> None:
    assert round_trip(Box[Item], Box(Item("a", Decimal(1)))) == Box(Item("a", Decimal(1)))
    assert problem(Box[int], Box("x")) == "content: expected a whole number, got str"
    assert problem(Box[int], Box(1, ["x"])) == "more[0]: expected a whole number, got str"
    assert problem(Crate[int], Crate(Box(["x"]))) == "box.content[0]: expected a whole number, got str"
    assert problem(IntBox, IntBox("x")) == "content: expected a whole number, got str"  # type: ignore[arg-type]  # wrong on purpose
    assert round_trip(Box, Box({"a": 1})) == Box({"a": 1})


class Movie(TypedDict):
    title: str
    year: int


class Sequel(Movie, total=False):
    rating: float
    at: datetime


def test_typed_dicts_check_their_keys() -> None:
    assert round_trip(Sequel, {"title": "a", "year": 1}) == {"title": "a", "year": 1}
    assert round_trip(Sequel, {"title": "a", "year": 1, "at": datetime(2024, 1, 1)})["at"] == datetime(2024, 1, 1)
    assert problem(Movie, {"title": "a"}) == "missing 'year'"
    assert problem(Movie, {"title": "a", "year": 1, 2: 3}) == "unknown 2"
    assert problem(Sequel, {"title": "a", "year": 1, "rating": "x"}) == "rating: expected a number, got str"
    assert decode_problem(Movie, {"title": "a", "year": "x"}) == "year: expected a whole number, got str"


def test_not_required_is_seen_through_postponed_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions = pytest.importorskip("typing_extensions")
    for flavour in {extensions, typing} if sys.version_info >= (3, 11) else {extensions}:
        module: Any = types.ModuleType("postponed")
        monkeypatch.setitem(sys.modules, "postponed", module)
        module.t = flavour
        exec(
            "from __future__ import annotations\n"
            "class Part(t.TypedDict):\n    a: int\n    b: t.NotRequired[int]\n"
            "class Other(t.TypedDict, total=False):\n    a: t.Required[int]\n    b: int\n",
            module.__dict__,
        )
        for codec in (codec_for(module.Part), codec_for(module.Other)):
            assert codec.decode('{"a":1}') == {"a": 1}
            assert codec.decode('{"a":1,"b":2}') == {"a": 1, "b": 2}
            with pytest.raises(CodecError, match="missing 'a'"):
                codec.decode('{"b":1}')


@dataclass
class Cat:
    kind: Literal["cat"] = "cat"
    name: str = ""


@dataclass
class Dog:
    kind: Literal["dog"] = "dog"
    name: str = ""


def test_unions_of_objects_are_told_apart_by_a_literal_or_by_their_keys() -> None:
    assert round_trip(Cat | Dog, Dog(name="x")) == Dog(name="x")
    assert round_trip(list[Cat | Dog], [Dog(), Cat()]) == [Dog(), Cat()]
    assert round_trip(Item | Movie, {"title": "a", "year": 1}) == {"title": "a", "year": 1}
    assert round_trip(Item | Positive | None, Positive(1)) == Positive(1)


@dataclass
class WithSet:
    names: set[str]


@dataclass
class WithInitVar:
    name: str
    secret: InitVar[int]


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (set[int], "a set has no JSON form; declare a list"),
        (frozenset, "a frozenset has no JSON form"),
        (bytes, "a bytes has no JSON form; encode it as text"),
        (WithSet, "WithSet.names: a set has no JSON form"),
        (WithInitVar, "WithInitVar.secret: what no field keeps"),
        (dict[int, str], "the keys of a JSON object are text"),
        (str | datetime, "text and a datetime cannot be told apart"),
        (Item | dict[str, Any], "an Item and a dict cannot be told apart"),
        (Item | Special, "an Item and a Special cannot be told apart"),
        (Colour | str, "a Colour and text cannot be told apart"),
        (int | timedelta, "a whole number and a timedelta cannot be told apart"),
        (Path := type("Path", (), {}), "the class Path has no JSON form"),
        (Literal[b"x"], "b'x' has no JSON form"),
        (Enum("Odd", {"A": (1, 2)}), "the values of the enum Odd"),
        (typing.Callable[[], int], "has no JSON form"),
        (5, "5 has no JSON form"),
        ([], "is not a type"),
    ],
)  # fmt: skip
def test_a_type_without_a_json_form_is_refused_when_it_is_declared(annotation: Any, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        codec_for(annotation, where="input of 'x'")
    assert message in str(raised.value)


def test_a_name_that_cannot_be_resolved_is_named() -> None:
    @dataclass
    class Local:
        value: Nowhere  # type: ignore[name-defined]  # noqa: F821 - there is none

    with pytest.raises(TypeError, match=r"Local: the name 'Nowhere'"):
        codec_for(Local)
    assert codec_for(Local, localns={"Nowhere": int}).encode(Local(1)) == '{"value":1}'


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in 3.12")
def test_type_aliases_may_be_generic_and_recursive() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "type Json = dict[str, Json] | list[Json] | str | int | float | bool | None\ntype Pair[T] = tuple[T, T]",
        namespace,
    )
    data = {"a": [1, {"b": None}, "x", 2.5, True]}
    assert round_trip(namespace["Json"], data) == data
    assert problem(namespace["Pair"][int], (1, "x")) == "[1]: expected a whole number, got str"


def test_pydantic_models_are_validated_both_ways() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Line(pydantic.BaseModel):  # type: ignore[misc,name-defined]  # a base that is imported at run time
        model_config = pydantic.ConfigDict(strict=True)
        sku: str = pydantic.Field(alias="SKU", min_length=2)
        at: datetime
        amounts: set[int]

    class Cart(pydantic.BaseModel):  # type: ignore[misc,name-defined]  # a base that is imported at run time
        lines: list[Line] = pydantic.Field(default_factory=list)
        total: Decimal = Decimal(0)

    line = Line(SKU="ab", at=datetime(2024, 1, 1), amounts={1})
    cart = Cart(lines=[line], total=Decimal("1.5"))
    namespace = locals()
    assert round_trip(Cart, cart) == cart
    assert round_trip(list[Cart] | None, [cart]) == [cart]
    assert round_trip(Cart | None, None) is None
    assert codec_for(Cart, localns=namespace).encode({"total": "2"}) == '{"lines":[],"total":"2"}'
    assert "lines[0].SKU: " in decode_problem(Cart, {"lines": [{"SKU": "a", "at": "2024-01-01T00:00:00", "amounts": []}]})
    assert problem(Cart, line) == "expected a Cart, got Line"
    cart.lines = "nothing"  # type: ignore[assignment]  # wrong on purpose
    assert problem(Cart, cart).startswith("lines: ")
    with pytest.raises(TypeError, match="cannot be told apart"):
        codec_for(Cart | Line)


def test_pydantic_unions_are_told_apart_by_a_literal() -> None:
    pydantic = pytest.importorskip("pydantic")

    class A(pydantic.BaseModel):  # type: ignore[misc,name-defined]  # a base that is imported at run time
        kind: Literal["a"] = "a"

    class B(pydantic.BaseModel):  # type: ignore[misc,name-defined]  # a base that is imported at run time
        kind: Literal["b"] = "b"

    assert round_trip(A | B, B()) == B()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "nan is not JSON"),
        ({"a": [1, math.inf]}, "a[1]: inf is not JSON"),
        ({"a": {1, 2}}, "a: a set is not JSON"),
        ([b"x"], "[0]: a bytes is not JSON"),
        ({1: "a"}, "a JSON object has text keys, not 1"),
        ({"a": {None: 1}}, "a: a JSON object has text keys, not None"),
        (object(), "an object is not JSON"),
        (Colour.RED, "a Colour is not JSON"),
        (Item("a", Decimal(1)), "an Item is not JSON"),
        ("\ud800", "lone surrogate"),
        ({"a\udfff": 1}, "lone surrogate"),
        ("\ud83d\ude00", "lone surrogate"),
    ],
)
def test_what_json_cannot_hold_is_refused(value: Any, message: str) -> None:
    with pytest.raises(CodecError) as raised:
        dump_json(value)
    assert message in str(raised.value)
    with pytest.raises(CodecError):
        codec_for(Any).encode(value)


def test_cycles_and_deep_nesting_are_refused_both_ways() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    mapping: dict[str, Any] = {}
    mapping["self"] = [mapping]
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    for value in (cycle, mapping, deep):
        with pytest.raises(CodecError, match="nested too deep"):
            dump_json(value)
    assert load_json(dump_json(deep[0])) == deep[0]
    with pytest.raises(CodecError, match="nested too deep"):
        load_json("[" * 200_000)


def test_subclasses_of_plain_types_are_written_as_what_they_are() -> None:
    assert dump_json({"level": Level.HIGH, "pair": (1, 2)}) == '{"level":2,"pair":[1,2]}'
    assert codec_for(int).encode(Level.HIGH) == "2"


def test_huge_numbers_are_codec_errors() -> None:
    if hasattr(sys, "get_int_max_str_digits"):
        with pytest.raises(CodecError):
            dump_json(10**5000)
        with pytest.raises(CodecError):
            load_json("1" * 5000)


@pytest.mark.parametrize("text", ["", " ", "{", "nan", "NaN", "[Infinity]", "-Infinity", "1 2", "'a'", "[1,]", "\ufeff1"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        load_json(text)
    with pytest.raises(CodecError):
        codec_for(dict[str, int]).decode(text)


def test_white_space_around_json_is_fine() -> None:
    assert load_json(' \n{"a": 1}\t') == {"a": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_json_value_comes_back(value: Any) -> None:
    text = dump_json(value)
    assert load_json(text) == value
    assert json.loads(text) == value


def contains_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(contains_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(contains_nul(part) for part in value)


awkward_text = st.lists(st.sampled_from(["\\", "\x00", "u0000", "\\u0000", '"', "a"])).map("".join)


@given(st.recursive(awkward_text, lambda inner: st.lists(inner) | st.dictionaries(awkward_text, inner), max_leaves=5))
def test_a_nul_is_found_only_where_there_is_one(value: Any) -> None:
    assert has_nul(dump_json(value)) is contains_nul(value)


instants = st.datetimes(timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=5, minutes=45))]) | st.none())
decimals = st.decimals(allow_nan=False, allow_infinity=False)
items = st.builds(Item, st.text(), decimals, st.none() | st.sampled_from(Colour))
spans = st.timedeltas(timedelta(days=-36_500), timedelta(days=36_500))
floats = st.floats(allow_nan=False, allow_infinity=False)
orders = st.builds(
    Order,
    order_id=st.integers(),
    items=st.lists(items, max_size=3),
    placed_at=instants,
    day=st.dates(),
    at=st.times(),
    takes=spans,
    reference=st.uuids(),
    weight=floats,
    notes=st.dictionaries(st.text(), st.text(), max_size=3),
    parent=st.none(),
    pair=st.tuples(st.integers(), st.text()),
    tags=st.lists(st.text(), max_size=3).map(tuple),
    level=st.sampled_from(Level),
    size=st.sampled_from(["s", "l", 3]),
    user=st.integers(),
    anything=json_values,
)


@settings(max_examples=50)
@given(orders, st.none() | orders)
def test_every_order_comes_back(value: Order, parent: Order | None) -> None:
    value.parent = parent
    assert round_trip(Order, value) == value


unions = st.sampled_from(
    [
        (int | None, st.integers() | st.none()),
        (int | float | str | bool | None, st.integers() | floats | st.text() | st.booleans() | st.none()),
        (Decimal | int | list[date], decimals | st.integers() | st.lists(st.dates())),
        (
            dict[str, UUID] | Level | Literal["x"],
            st.dictionaries(st.text(), st.uuids()) | st.sampled_from([*Level, "x"]),
        ),
        (tuple[int, Colour] | timedelta, st.tuples(st.integers(), st.sampled_from(Colour)) | spans),
    ]
)


@given(unions.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_every_member_of_a_union_comes_back_as_itself(case: tuple[Any, Any]) -> None:
    annotation, value = case
    result = round_trip(annotation, value)
    assert result == value
    assert type(result) is type(value)


@given(json_values)
def test_decoding_anything_gives_a_value_that_encodes_or_a_codec_error(data: Any) -> None:
    for annotation in (Order, Item, Sequel, list[Colour], Union[int, Item, None], Access, dict[str, float]):
        codec = codec_for(annotation)
        try:
            value = codec.decode(dump_json(data))
        except CodecError:
            continue
        assert codec.decode(codec.encode(value)) == value
