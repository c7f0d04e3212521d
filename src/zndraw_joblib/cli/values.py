"""JSON values on a terminal: long texts and lists shortened, a line for an encoded object."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import isfinite
from struct import error as InvalidLength
from struct import iter_unpack
from typing import Any

from zndraw_joblib.jobs.codecs import TAG, from_base64

_MAX_CHARACTERS, _MAX_ITEMS, _FIRST_VALUES = 1000, 50, 6
# The formats of the numbers of an array, as `struct` names them.
_FORMATS = {
    **{"bool": "?", "float32": "f", "float64": "d"},
    **{"int8": "b", "int16": "h", "int32": "i", "int64": "q"},
    **{"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"},
}


def shortened(value: Any) -> Any:
    """Return a JSON value as a person reads it."""
    if isinstance(value, str):
        more = len(value) - _MAX_CHARACTERS
        return f"{value[:_MAX_CHARACTERS]}… and {more:,} more characters" if more > 0 else value
    if isinstance(value, list):
        items = [shortened(item) for item in value[:_MAX_ITEMS]]
        more = len(value) - _MAX_ITEMS
        return [*items, f"… and {more:,} more items"] if more > 0 else items
    if isinstance(value, dict):
        summary = _summary(value) if TAG in value else None
        return {key: shortened(item) for key, item in value.items()} if summary is None else summary
    return value


def _summary(value: Mapping[str, Any]) -> str | None:
    """Return one line for an object that a codec has encoded; None for another or an invalid one."""
    try:
        return _SUMMARIES[value[TAG]](value)
    except _INVALID:
        return None


def _array(value: Mapping[str, Any]) -> str:
    dtype, shape, data = value["dtype"], tuple(value["shape"]), value["data"]
    text = f"{dtype} array {shape}"
    if isinstance(data, list):
        return f"{text}: {_first(data)}"
    if dtype not in _FORMATS:
        return text
    numbers: list[float] = [number for (number,) in iter_unpack(f"<{_FORMATS[dtype]}", from_base64(data))]
    if not numbers:
        return text
    finite = [number for number in numbers if isfinite(number)]
    bounds = f", {_number(min(finite))} to {_number(max(finite))}" if finite and dtype != "bool" else ""
    return f"{text}{bounds}: {_first(numbers)}"


def _first(values: Any) -> str:
    first = ", ".join(map(_number, islice(values, _FIRST_VALUES)))
    return f"{first}, …" if len(values) > _FIRST_VALUES else first


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:_MAX_ITEMS]


def _frame(value: Mapping[str, Any]) -> str:
    columns = [f"{str(column['name'])[:_MAX_ITEMS]} ({column['dtype']})" for column in value["columns"]]
    return f"DataFrame, {value['rows']:,} rows, {len(columns):,} columns: {_few(columns)}"


def _few(texts: Iterable[str]) -> str:
    names = list(texts)
    return ", ".join([*names[:_MAX_ITEMS], *(["…"] if len(names) > _MAX_ITEMS else [])])


def _series(value: Mapping[str, Any]) -> str:
    values = value["values"]
    name = "" if value["name"] is None else f" {str(value['name'])[:_MAX_ITEMS]!r}"
    return f"Series{name}: " + (
        f"{value['dtype']}, {_first(values)}" if isinstance(values, list) else _array(values)
    )


def _atoms(value: Mapping[str, Any]) -> str:
    fields = value["atoms"]
    results = f", with {_few(sorted(fields['results']))}" if fields.get("results") else ""
    return f"Atoms, {fields['numbers']['shape'][0]:,} atoms{results}"


# What codecs never write, and a result may have.
_INVALID = (*(ArithmeticError, AttributeError, LookupError), *(TypeError, ValueError, InvalidLength))
_SUMMARIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ndarray": _array,
    "pandas.DataFrame": _frame,
    "pandas.Series": _series,
    "ase.Atoms": _atoms,
    "bytes": lambda value: f"{len(from_base64(value['data'])):,} bytes",
    "complex": lambda value: str(complex(value["real"], value["imag"])),
    "float": lambda value: str(float(value["value"])),
}
