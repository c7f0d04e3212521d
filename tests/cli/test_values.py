"""How results look on a terminal: each encoded object is a line."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from zndraw_joblib.cli.values import shortened
from zndraw_joblib.jobs import library_codecs  # noqa: F401 - it registers the codecs
from zndraw_joblib.jobs.codecs import encode

FRAME = pd.DataFrame({"id": [1, 2], "name": ["a", "b"]})


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (np.linspace(-1, 1, 9), "float64 array (9,), -1 to 1: -1, -0.75, -0.5, -0.25, 0, 0.25, …"),
        (np.arange(4, dtype=">i2").reshape(2, 2), "int16 array (2, 2), 0 to 3: 0, 1, 2, 3"),
        (np.array([np.nan, 2.0]), "float64 array (2,), 2 to 2: nan, 2"),
        (np.array([True, False]), "bool array (2,): True, False"),
        (np.array([]), "float64 array (0,)"),
        (np.array([1j]), "complex128 array (1,)"),
        (np.array(["a", "b"]), "str array (2,): a, b"),
        (FRAME, "DataFrame, 2 rows, 2 columns: id (int64), name (str)"),
        (FRAME["id"], "Series 'id': int64 array (2,), 1 to 2: 1, 2"),
        (FRAME["name"], "Series 'name': str, a, b"),
        (b"1234", "4 bytes"),
        (1 + 2j, "(1+2j)"),
        (float("inf"), "inf"),
    ],
)
def test_an_encoded_object_is_a_line(value: Any, line: str) -> None:
    """Also inside other values."""
    assert shortened(json.loads(encode(value))) == line
    assert shortened(json.loads(encode({"values": [value]}))) == {"values": [line]}


def test_atoms_are_a_line() -> None:
    """With the names of their results."""
    numbers = {"$zndraw": "ndarray", "dtype": "int64", "shape": [3], "data": ""}
    atoms: dict[str, Any] = {"$zndraw": "ase.Atoms", "atoms": {"numbers": numbers}}
    assert shortened(atoms) == "Atoms, 3 atoms"
    atoms["atoms"]["results"] = {"forces": [], "energy": 1}
    assert shortened(atoms) == "Atoms, 3 atoms, with energy, forces"


@pytest.mark.parametrize(
    "value",
    [
        {"$zndraw": "my.codec", "x": [1]},
        {"$zndraw": ["ndarray"]},
        {"$zndraw": "ndarray", "dtype": "float64", "shape": [1], "data": "AAA"},
        {"$zndraw": "ndarray", "dtype": "float64", "shape": [1], "data": "AAAA"},
        {"$zndraw": "ndarray", "dtype": "float64", "shape": 1, "data": []},
        {"$zndraw": "pandas.DataFrame", "rows": "many", "columns": []},
        {"$zndraw": "ase.Atoms", "atoms": None},
    ],
)
def test_other_objects_stay_json(value: Any) -> None:
    """Those of unknown codecs, and what only looks as if it were encoded."""
    assert shortened(value) == value
