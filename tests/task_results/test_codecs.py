"""The encoding of values as JSON."""

import dataclasses
import datetime
import enum
import io
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from PIL import Image
from pydantic import BaseModel, ConfigDict

from zndraw_joblib.jobs.codecs import NotSerializable, decode_json, encode, register_codec
from zndraw_joblib.jobs.results import can_encode, decode_content, encode_result
from zndraw_joblib.worker.manager import warn_of_return_type


def back(value: Any) -> Any:
    """Return a value after it was encoded and decoded; the JSON is strict."""
    encoded = encode(value)
    json.loads(encoded, parse_constant=pytest.fail)
    return decode_json(encoded)


class Color(enum.Enum):
    """A color."""

    RED = "red"


@dataclasses.dataclass
class Frame:
    """A frame with an array."""

    positions: Any
    color: Color = Color.RED


class Model(BaseModel):
    """A model with an array."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    array: np.ndarray
    energy: float
    day: datetime.date


def test_an_array_keeps_its_values_shape_and_type(subtests: pytest.Subtests) -> None:
    """In C order and little-endian, also if its memory is not; it can be changed."""
    for dtype in [
        "bool",
        "uint8",
        "int64",
        "float16",
        "float32",
        "float64",
        ">f8",
        "complex128",
        "datetime64[s]",
        "timedelta64[ms]",
    ]:
        for shape in ((), (0,), (6,), (2, 3), (0, 3)):
            with subtests.test(dtype=dtype, shape=shape):
                array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
                for given in (array, np.asfortranarray(array), array.T):
                    got = back(given)
                    assert np.array_equal(got, given)
                    assert (got.dtype, got.shape) == (given.dtype.newbyteorder("="), given.shape)
                    assert got.flags.writeable


def test_texts_and_objects_in_arrays() -> None:
    """They are lists, and NaN in an array of numbers needs no tag of its own."""
    assert np.array_equal(back(np.array([["H", "He"]])), [["H", "He"]])
    objects = back(np.array([1, "a", None, np.arange(2)], dtype=object))
    assert list(objects[:3]) == [1, "a", None]
    assert np.array_equal(objects[3], [0, 1])
    assert np.isnan(back(np.array([np.nan, 1]))[0])


def test_what_json_can_express_has_no_tag(subtests: pytest.Subtests) -> None:
    """Front-ends read it as any other JSON."""
    for value, plain in [
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (iter([1, 2]), [1, 2]),
        (range(2), [0, 1]),
        (datetime.date(2030, 1, 2), "2030-01-02"),
        ({"a": pd.NaT, "b": [pd.NA]}, {"a": None, "b": [None]}),
        (pd.Index(["x", "y"]), ["x", "y"]),
        (pd.date_range("2030-01-02", periods=1), ["2030-01-02T00:00:00"]),
        (pd.Period("2030-01"), "2030-01"),
        (np.datetime64("2030-01-02"), "2030-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Color.RED, "red"),
        ([np.float32(0.5), np.int8(1), np.bool_(True)], [0.5, 1, True]),
        ({1: 2, np.int64(3): 4, (5, 6): 7, Color.RED: 8}, {"1": 2, "3": 4, "5,6": 7, "red": 8}),
    ]:
        with subtests.test(value=value, plain=plain):
            assert json.loads(encode(value)) == plain


def test_parts_of_dataclasses_and_models() -> None:
    """Arrays, NaN and enumerations inside them are encoded too."""
    frame = back([Frame(np.arange(2))])[0]
    assert (frame["color"], list(frame["positions"])) == ("red", [0, 1])
    model = back({"deep": [Model(array=np.arange(2), energy=float("-inf"), day=datetime.date(2030, 1, 2))]})
    got = model["deep"][0]
    assert (list(got["array"]), got["energy"], got["day"]) == ([0, 1], float("-inf"), "2030-01-02")


def test_an_iterator_is_read_once() -> None:
    """Also if the value has NaN, which needs a closer look; its own error is raised."""
    assert back({"items": (n for n in range(3)), "nan": float("nan")})["items"] == [0, 1, 2]

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("late")

    with pytest.raises(ValueError, match=r"^late$"):
        encode({"items": broken()})


def test_a_data_frame_and_a_series() -> None:
    """With missing values, categories, times with a zone, nullable integers and an index."""
    frame = pd.DataFrame(
        {
            "x": [1.5, np.nan],
            "text": ["a", None],
            "kind": pd.Categorical(["u", "v"]),
            "count": pd.array([1, None], dtype="Int64"),
            "at": pd.to_datetime(["2030-01-01", "2030-01-02"], utc=True),
        }
    )
    for given in (frame, frame.set_index("text"), frame.iloc[:0], pd.DataFrame(index=range(2))):
        pd.testing.assert_frame_equal(back(given), given)
    pd.testing.assert_series_equal(back(frame["x"]), frame["x"])


def test_atoms_with_the_results_of_their_calculator() -> None:
    """Constraints and additional arrays too; results of other positions are left out."""
    atoms = molecule("H2O")
    atoms.calc = EMT()
    atoms.get_forces()
    atoms.set_constraint(FixAtoms([0]))
    atoms.info["key"] = np.arange(2)
    atoms.set_array("label", np.array(["a", "b", "c"]))
    got = back(atoms)
    assert got == atoms
    assert got.get_potential_energy() == atoms.get_potential_energy()
    assert np.array_equal(got.get_forces(), atoms.get_forces())
    assert list(got.arrays["label"]) == ["a", "b", "c"]
    assert got.constraints[0].index.tolist() == [0]
    atoms.positions += 1
    assert back(atoms).calc is None


def test_the_place_of_what_cannot_be_encoded_is_named(subtests: pytest.Subtests) -> None:
    """In the error, with its class."""
    for value, text in [
        (
            {"frames": [0, 1, {"cell": object()}]},
            "result.frames[2].cell: an object of object cannot be encoded",
        ),
        ({"a": lambda: 1}, "result.a: an object of function cannot be encoded"),
        ([Frame(object())], "result[0].positions: an object of object"),
        ([np.ma.array([1])], "result[0]: a masked array"),
        ([np.zeros(1, dtype=[("a", "f8")])], "result[0]: an array of [('a', '<f8')]"),
        ({"d": pd.DataFrame({("a", "b"): [1]})}, "result.d: columns of several levels"),
        ({(object(),): 1}, "a field name in result"),
        ({"x": ["\ud800"]}, "result.x[0]: the text is not JSON"),
        ({float("nan"): 1}, "a field name in result: nan"),
    ]:
        with subtests.test(value=value, text=text):
            with pytest.raises(NotSerializable) as caught:
                encode(value)
            assert text in str(caught.value)


def test_a_value_that_contains_itself() -> None:
    """It is refused."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotSerializable, match="contains itself"):
        encode(value)


def test_the_cell_of_atoms_is_an_array() -> None:
    """As `atoms.cell` returns it."""
    found = back({"cell": bulk("Cu").cell})["cell"]
    assert np.array_equal(found, bulk("Cu").cell.array)


def test_an_unknown_or_invalid_tag() -> None:
    """An unknown tag stays as it is; a value that its codec cannot read is a ValueError."""
    assert decode_json(b'{"$zndraw": "other", "a": 1}') == {"$zndraw": "other", "a": 1}
    for fields in (
        '"dtype": "object", "shape": [1], "data": "AAAA"',
        '"dtype": "float64"',
        '"dtype": 1, "data": 2',
    ):
        with pytest.raises(ValueError, match="'ndarray' is invalid"):
            decode_json(b'{"$zndraw": "ndarray", %s}' % fields.encode())


def table(rows: int, *columns: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a data frame in JSON."""
    return {"$zndraw": "pandas.DataFrame", "index": None, "rows": rows, "columns": list(columns)}


def column(values: Any, dtype: str = "int64") -> dict[str, Any]:
    """Return a column of a data frame in JSON."""
    return {"name": "a", "dtype": dtype, "values": values}


def array(shape: list[int], data: Any, dtype: str = "int64") -> dict[str, Any]:
    """Return an array in JSON."""
    return {"$zndraw": "ndarray", "dtype": dtype, "shape": shape, "data": data}


def test_no_value_needs_far_more_memory_than_its_json(subtests: pytest.Subtests) -> None:
    """What declares more than it contains is a ValueError with the reason, before memory is allocated."""
    for value, text in [
        (array([200_001], ["a" * 200_000] + ["b"] * 200_000, "str"), "takes 160000800000 bytes"),
        (array([10**12], ""), "cannot reshape"),
        (array([0], "", "S1000000000"), "has no bytes"),
        (table(10**12, column(5)), "not a list"),
        (table(10**12, column(None)), "not a list"),
        (table(10**12, column({"a": 1})), "not a list"),
        (table(10**12, column(array([], "AAAAAAAAAAA="))), "not a list"),
        (table(10**12, column([1])), "1 values for 1000000000000 rows"),
        (table(10**12, {**column([1], "category"), "categories": column([1]), "ordered": False}), "1 values"),
        (table(10**12), "1000000000000 rows have no columns"),
        (table(10**30, column([1])), "too large"),
        (table(2, column([None, "1"], "S1000000000")), "cannot have the dtype 'S1000000000'"),
        (table(2, column(["a" * 100_000, "b"], "S")), "cannot have the dtype 'S'"),
        ({"$zndraw": "ase.Atoms", "atoms": {**molecule("H2").todict(), "tags": [1]}}, "tags"),
    ]:
        with subtests.test(value=value, text=text), pytest.raises(ValueError, match=text):
            decode_json(encode(value))


def test_texts_of_different_lengths_in_an_array() -> None:
    """An array of a few megabytes may consist of padding, as where it was made."""
    texts = np.array(["a" * 100_000, *("b" for _ in range(100))])
    found = back(texts)
    assert found.dtype == texts.dtype
    assert np.array_equal(found, texts)


def test_an_array_file_that_declares_more_than_it_has_is_refused(subtests: pytest.Subtests) -> None:
    """In each version of the format; a complete one is read."""
    for version in ((1, 0), (2, 0), (3, 0)):
        with subtests.test(version=version):
            file = io.BytesIO()
            np.lib.format.write_array(file, np.arange(12.0).reshape(3, 4), version)
            content = file.getvalue()
            assert np.array_equal(decode_content(content, "application/x-npy"), np.arange(12.0).reshape(3, 4))
            bomb = content.replace(b"(3, 4), }        ", b"(3, 4000000000), }")
            for invalid in (bomb, content[:-1], b"PK\x03\x04" + content, b""):
                with pytest.raises(ValueError, match=r"96000000000 bytes should follow|not 95|magic"):
                    decode_content(invalid, "application/x-npy")


class Uncodable:
    """A class without a codec."""


class Cell:
    """A class that gets a codec."""

    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors


def test_a_codec_of_ones_own() -> None:
    """It encodes objects of the class; another class cannot take its tag."""
    register_codec(
        Cell, "tests.Cell", lambda cell: {"vectors": cell.vectors}, lambda given: Cell(given["vectors"])
    )
    assert np.array_equal(back([Cell(np.eye(2))])[0].vectors, np.eye(2))
    with pytest.raises(ValueError, match="belongs to another codec"):
        register_codec(Frame, "tests.Cell", dataclasses.asdict, lambda given: Frame(**given))


@pytest.mark.processes
def test_no_library_is_imported() -> None:
    """Neither by the SDK, nor to encode; decoding without the library leaves the JSON."""
    script = (
        "import sys; sys.modules['numpy'] = None; import zndraw_joblib.worker.manager; "
        "from zndraw_joblib.jobs.codecs import decode_json, encode; encode({'a': [float('nan'), b'x']}); "
        "value = {'$zndraw': 'ndarray', 'dtype': 'int8', 'shape': [1], 'data': 'AQ=='}; "
        "assert decode_json(encode(value)) == value; "
        "assert not {'pandas', 'ase', 'PIL', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_endless_iterator_is_refused() -> None:
    """After as many items as a result of 1 MiB may have."""
    with pytest.raises(NotSerializable, match="at most 524,288 items"):
        encode_result(iter(int, 1))


class OwnPath(Path):
    """A subclass of a class of the standard library."""


def test_a_class_that_can_never_be_encoded_is_known(subtests: pytest.Subtests) -> None:
    """Before a job returns an object of it."""
    for cls, expected in [
        *[
            (cls, True)
            for cls in (Any, object, int, list[Cell], Frame, Model, OwnPath, Color, np.ndarray, pd.Series)
        ],
        (Image.Image, True),
        (Iterator[int], True),
        (Uncodable, False),
        (httpx.Client, False),
    ]:
        with subtests.test(cls=cls, expected=expected):
            assert can_encode(cls) is expected


def test_a_registration_warns_of_the_return_type(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the job and the class; an annotation that cannot be read is ignored."""

    class Job:
        def run(self, vis: Any) -> Uncodable:
            raise NotImplementedError

    class Other:
        def run(self, vis: Any) -> "OnlyForTypeCheckers":  # type: ignore[name-defined] # noqa: F821
            raise NotImplementedError

    warn_of_return_type(Other)
    assert not caplog.records
    warn_of_return_type(Job)
    assert "Job.run() returns objects of " in caplog.text
    assert "Uncodable, which cannot be encoded" in caplog.text
