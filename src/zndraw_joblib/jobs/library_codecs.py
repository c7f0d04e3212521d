"""The codecs of NumPy, pandas and ASE. A library is imported only to decode its objects."""

import sys
from importlib import import_module
from typing import Any

from zndraw_joblib.jobs.codecs import Codec, NotSerializable, from_base64, register_named, to_base64

# Booleans, integers, floats, complex numbers, dates and durations: their bytes are the same everywhere.
_BINARY_KINDS = "biufcmM"
_COMPLEX_DOUBLE = 16
# An array gives each of its texts the room of the longest one, with four bytes for a character. It may take
# this many bytes, or this many for each character of its texts. Other data take about as many as their JSON.
_MAX_PADDED_BYTES = 1 << 26
_MAX_BYTES_PER_CHARACTER = 16
_MAX_EMPTY_ROWS = 1_000_000


def _encode_array(array: Any) -> dict[str, Any]:
    """Return an array: numbers as little-endian bytes in C order, texts and other objects as a list."""
    numpy = sys.modules["numpy"]
    if isinstance(array, numpy.ma.MaskedArray):
        raise _refused(
            "a masked array cannot be encoded. Return array.filled(…), or array.data and array.mask"
        )
    kind, shape = array.dtype.kind, list(array.shape)
    if kind in _BINARY_KINDS and array.dtype.itemsize <= (_COMPLEX_DOUBLE if kind == "c" else 8):
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        return {"dtype": array.dtype.name, "shape": shape, "data": to_base64(little.tobytes())}
    if kind in "UO":
        dtype = "str" if kind == "U" else "object"
        return {"dtype": dtype, "shape": shape, "data": array.ravel().tolist()}
    raise _refused(f"an array of {array.dtype} cannot be encoded. Convert it with astype(), or return bytes")


def _decode_array(encoded: dict[str, Any]) -> Any:
    numpy = import_module("numpy")
    dtype, shape, data = encoded["dtype"], encoded["shape"], encoded["data"]
    if not isinstance(data, str):
        if dtype != "object":
            return numpy.array(_checked_texts(data), dtype=str).reshape(shape)
        array = numpy.empty(len(data), dtype=object)
        array[:] = data
        return array.reshape(shape)
    parsed = numpy.dtype(dtype)
    if parsed.kind not in _BINARY_KINDS:
        raise ValueError(f"the dtype {dtype!r} has no bytes")
    # A copy, which can be changed.
    return numpy.frombuffer(from_base64(data), parsed.newbyteorder("<")).astype(parsed).reshape(shape)


def _checked_texts(data: Any) -> list[str]:
    """Return the texts of an array. Raises ValueError if it would take far more memory than they do."""
    texts = [str(item) for item in data]
    longest, characters = max(map(len, texts), default=0), sum(map(len, texts))
    size = 4 * longest * len(texts)
    if size > max(_MAX_PADDED_BYTES, _MAX_BYTES_PER_CHARACTER * characters):
        raise ValueError(
            f"an array of {len(texts)} texts, the longest with {longest} characters, takes {size} bytes. "
            "Return a list, or an array of objects"
        )
    return texts


def _encode_scalar(value: Any) -> Any:
    """Return a NumPy scalar as a plain number or text; a date as ISO text."""
    kind = value.dtype.kind
    if kind == "M":
        return str(value)
    if kind == "f":
        return float(value)
    if kind == "c":
        return complex(value)
    if kind in "biu":
        return value.item()
    return sys.modules["numpy"].asarray(value)


def _encode_series(series: Any) -> dict[str, Any]:
    return {"name": series.name, "index": _encode_index(series.index), **_encode_column(series)}


def _encode_column(column: Any) -> dict[str, Any]:
    """Return the values of a column: an array if the numbers are all there, else a list."""
    dtype, numpy = column.dtype, sys.modules["numpy"]
    if isinstance(dtype, numpy.dtype) and dtype.kind in _BINARY_KINDS:
        return {"dtype": str(dtype), "values": column.to_numpy()}
    pandas = sys.modules["pandas"]
    is_missing = pandas.isna(column)
    values = [None if gone is True else item for gone, item in zip(is_missing.tolist(), column, strict=True)]
    encoded: dict[str, Any] = {"dtype": str(dtype), "values": values}
    if isinstance(dtype, pandas.CategoricalDtype):
        encoded |= {"categories": _encode_column(dtype.categories), "ordered": bool(dtype.ordered)}
    return encoded


def _decode_series(encoded: dict[str, Any]) -> Any:
    pandas = import_module("pandas")
    series = _decode_column(encoded, _decode_index(encoded["index"]))
    return series if encoded["name"] is None else pandas.Series(series, name=encoded["name"])


def _decode_column(encoded: dict[str, Any], index: Any) -> Any:
    pandas = import_module("pandas")
    _check_column(encoded["values"], encoded["dtype"], index)
    if encoded["dtype"] == "category":
        categories = _decode_index({"name": None, **encoded["categories"]})
        values = pandas.Categorical(encoded["values"], categories, ordered=encoded["ordered"])
        return pandas.Series(values, index=index)
    if isinstance(encoded["values"], list):
        return pandas.Series(encoded["values"], index=index, dtype=object).astype(encoded["dtype"])
    return pandas.Series(encoded["values"], index=index)


def _check_column(values: Any, dtype: Any, index: Any) -> None:
    """Raise ValueError for values that pandas would repeat for each row, or pad to the length of a dtype."""
    numpy, types = import_module("numpy"), import_module("pandas").api.types
    if not isinstance(values, list) and not (isinstance(values, numpy.ndarray) and values.ndim == 1):
        raise ValueError("the values of a column are not a list")
    if index is not None and len(values) != len(index):
        raise ValueError(f"a column has {len(values)} values for {len(index)} rows")
    parsed = types.pandas_dtype(dtype)
    if isinstance(parsed, numpy.dtype) and parsed.kind not in f"{_BINARY_KINDS}O" and str(dtype) != "str":
        raise ValueError(f"a column cannot have the dtype {dtype!r}")


def _encode_index(index: Any) -> Any:
    """Return an index, None for the default one."""
    pandas = sys.modules["pandas"]
    if isinstance(index, pandas.MultiIndex):
        raise _refused("an index of several levels cannot be encoded. Call reset_index() first")
    if isinstance(index, pandas.RangeIndex) and (index.start, index.step, index.name) == (0, 1, None):
        return None
    return {"name": index.name, **_encode_column(index)}


def _decode_index(encoded: Any) -> Any:
    if encoded is None:
        return None
    return import_module("pandas").Index(_decode_column(encoded, None), name=encoded["name"])


def _encode_frame(frame: Any) -> dict[str, Any]:
    if isinstance(frame.columns, sys.modules["pandas"].MultiIndex):
        raise _refused("columns of several levels cannot be encoded. Give each column one name")
    columns = [{"name": name, **_encode_column(column)} for name, column in frame.items()]
    return {"index": _encode_index(frame.index), "columns": columns, "rows": len(frame)}


def _decode_frame(encoded: dict[str, Any]) -> Any:
    pandas = import_module("pandas")
    index = _decode_index(encoded["index"])
    if index is None:
        if not encoded["columns"] and encoded["rows"] > _MAX_EMPTY_ROWS:
            raise ValueError(f"{encoded['rows']} rows have no columns")
        index = pandas.RangeIndex(encoded["rows"])
    columns = [_decode_column(column, index) for column in encoded["columns"]]
    frame = pandas.DataFrame(dict(enumerate(columns)), index=index)
    if columns:
        frame.columns = [column["name"] for column in encoded["columns"]]
    return frame


def _encode_atoms(atoms: Any) -> dict[str, Any]:
    fields = atoms.todict()
    fields["constraints"] = [constraint.todict() for constraint in atoms.constraints]
    calculator = atoms.calc
    results = getattr(calculator, "results", None)
    # Results of other positions are not those of these atoms.
    if isinstance(results, dict) and not calculator.check_state(atoms):
        fields["results"] = {name: value for name, value in results.items() if value is not None}
    return {"atoms": fields}


def _decode_atoms(encoded: dict[str, Any]) -> Any:
    fields = dict(encoded["atoms"])
    results = fields.pop("results", None)
    atoms = import_module("ase").Atoms.fromdict(fields)
    if results:
        calculator = import_module("ase.calculators.singlepoint").SinglePointCalculator
        atoms.calc = calculator(atoms, **results)
    return atoms


def _refused(reason: str) -> NotSerializable:
    return NotSerializable("", reason)


register_named("numpy.ndarray", Codec("ndarray", _encode_array, _decode_array))
register_named("numpy.generic", Codec(None, _encode_scalar, dict))
register_named("pandas.DataFrame", Codec("pandas.DataFrame", _encode_frame, _decode_frame))
register_named("pandas.Series", Codec("pandas.Series", _encode_series, _decode_series))
# What is missing in a table is null, like a missing cell of a `DataFrame` with objects.
for _missing in ("NaTType", "NAType"):
    register_named(f"pandas.{_missing}", Codec(None, lambda _: None, dict))
register_named("pandas.Index", Codec(None, lambda index: index.tolist(), dict))
register_named("pandas.Period", Codec(None, str, dict))
register_named("ase.Cell", Codec(None, lambda cell: cell.array, dict))
register_named("ase.Atoms", Codec("ase.Atoms", _encode_atoms, _decode_atoms))
