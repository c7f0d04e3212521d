"""Encode Python values as JSON and decode them again: the results and the payloads of tasks.

What JSON has no notation for becomes an object with the key ``$zndraw``, which names its codec:
``{"$zndraw": "float", "value": "NaN"}``. Libraries are never imported to encode: a codec is found by the name
of a value's class.
"""

import json
import math
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_jsonable_python

from zndraw_joblib.jobs.outputs import encode_output, output_fields
from zndraw_joblib.wire.masks import masked_paths
from zndraw_joblib.wire.messages import MAX_JSON_BYTES

T = TypeVar("T")

TAG = "$zndraw"
# An iterator may be endless. Each item of a list has at least two bytes as JSON.
MAX_ITEMS = MAX_JSON_BYTES // 2
_MARK = f'"{TAG}"'.encode()
_REMEDY = (
    "Return JSON values, dataclasses, pydantic models, dates, bytes, or objects of NumPy, pandas or ASE, or "
    "add a codec for the class with register_codec()"
)


class NotSerializable(ValueError):
    """A value cannot be encoded. `path` is its place, like ``result.frames[3].cell``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class Codec(NamedTuple):
    """How the objects of a class are encoded.

    `encode` returns the fields of the JSON object, whose values are encoded in turn; without a `tag`, it
    returns the whole value. `decode` gets the decoded fields.
    """

    tag: str | None
    encode: Callable[[Any], Any]
    decode: Callable[[dict[str, Any]], Any]

    def to_json(self, value: Any) -> Any:
        """Return the value for which JSON has a notation, or whose parts are encoded in turn."""
        encoded = self.encode(value)
        return encoded if self.tag is None else {TAG: self.tag, **encoded}


# By the first part of the module and the name of the class, like ``numpy.ndarray``.
_BY_NAME: dict[str, Codec] = {}
_BY_CLASS: dict[type[Any], Codec] = {}
_BY_TAG: dict[str, Codec] = {}


def register_codec(
    cls: type[T], tag: str, encode: Callable[[T], Mapping[str, Any]], decode: Callable[[dict[str, Any]], T]
) -> None:
    """Encode the objects of `cls` and its subclasses in results and payloads of this process.

    `encode` returns a mapping, whose values may be anything that can be encoded; `decode` gets it back. `tag`
    names the class in JSON; use a name with that of your package, like ``mypackage.Trajectory``. Workers and
    the clients that read the results have to register the same codec; others get the JSON. Raises ValueError
    if another class has the tag.
    """
    owner = _BY_TAG.get(tag)
    if owner is not None and _BY_CLASS.get(cls) is not owner:
        raise ValueError(
            f"The tag {tag!r} belongs to another codec: choose one with the name of your package"
        )
    codec = _BY_CLASS[cls] = Codec(tag, lambda value: dict(encode(value)), decode)
    _BY_TAG[tag] = codec


def register_named(name: str, codec: Codec) -> None:
    """Add the codec of a class that need not be imported: by its top-level package and its own name."""
    _BY_NAME[name] = codec
    if codec.tag is not None:
        _BY_TAG[codec.tag] = codec


def codec_of(cls: type[Any]) -> Codec | None:
    """Return the codec of a class or of its nearest base class."""
    for base in cls.__mro__:
        codec = _BY_CLASS.get(base) or _BY_NAME.get(
            f"{base.__module__.partition('.')[0]}.{base.__qualname__}"
        )
        if codec is not None:
            return codec
    return None


def encode(value: Any, root: str = "result") -> bytes:
    """Return a value as JSON in UTF-8.

    Raises `NotSerializable` with the place of a part that cannot be encoded, which begins with `root`, and
    what an iterator in the value raises.
    """
    try:
        return _encode(value, root)
    except _IteratorRaised as raised:
        raise raised.error from None


def _encode(value: Any, root: str) -> bytes:
    encoder = _Encoder()
    for dumps in (_PLAIN.encode, encoder.dumps):
        try:
            return dumps(value).encode()
        # Few values need a closer look: they have NaN, unusual field names, or a part that cannot be encoded.
        except (ValueError, TypeError, RecursionError):
            continue
    try:
        return _PLAIN.encode(encoder.plain(value, root)).encode()
    except RecursionError as error:
        raise NotSerializable(root, "it contains itself, or is nested too deeply") from error


def plain(value: Any, root: str = "payload") -> Any:
    """Return a value as plain JSON values. Raises as `encode`."""
    return json.loads(encode(value, root))


def plain_payload(payload: Any) -> Any:
    """Return a payload as plain JSON values; None is an empty one. Raises as `encode`, and TypeError."""
    try:
        fields = dict(payload or {})
    except (TypeError, ValueError):
        raise TypeError(
            f"payload: {payload!r:.100} is not a mapping of the job's parameters: "
            "pass a dict like {'width': 3}"
        ) from None
    return plain(fields)


def plain_model(model: Any, root: str = "payload") -> Any:
    """Return a pydantic model as plain JSON values, with its fields by their names. Raises as `encode`."""
    return plain(_model_fields(model, _Encoder().convert_part, by_alias=False), root)


def payload_of(job: Any) -> Any:
    """Return an instance of an extension, which may define `model_dump` itself, as plain JSON values."""
    if outputs := output_fields(job):
        dumped = job.model_dump(mode="json", exclude=outputs)
        return plain({**dumped, **{name: getattr(job, name) for name in sorted(outputs)}})
    try:
        dumped = job.model_dump(mode="json")
    except PydanticSerializationError:
        return plain_model(job)
    return plain(_revealed(dumped, job) if _has_secrets(job.__class__) else dumped)


@lru_cache(maxsize=1024)
def _has_secrets(cls: type[Any]) -> bool:
    """Return whether the schema of a class marks values as secret, which pydantic does not dump."""
    try:
        return masked_paths(cls.model_json_schema()) is not None
    except Exception:  # it is no model, or has a type without a schema
        return False


def _revealed(dumped: Any, value: Any) -> Any:
    """Return a dumped value with the values of each `SecretStr` in it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, SecretBytes):
        return value.get_secret_value().decode()
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        return {key: _revealed(part, getattr(value, key, part)) for key, part in dumped.items()}
    if isinstance(value, dict) and isinstance(dumped, dict):
        return {key: _revealed(part, value.get(key, part)) for key, part in dumped.items()}
    if isinstance(value, list | tuple) and isinstance(dumped, list) and len(value) == len(dumped):
        return [_revealed(part, item) for part, item in zip(dumped, value, strict=True)]
    return dumped


def decode(value: Any) -> Any:
    """Return a JSON value with all tagged objects as what they were.

    An object whose library is not installed, or whose tag is unknown, stays as it is. Raises ValueError for
    one that its codec cannot decode.
    """
    if isinstance(value, dict):
        decoded = {key: decode(item) for key, item in value.items()}
        return _untagged(decoded) if TAG in decoded else decoded
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def decode_json(content: bytes) -> Any:
    """Return JSON with all tagged objects as what they were. Raises as `decode`."""
    value = json.loads(content)
    return decode(value) if _MARK in content else value


def _untagged(value: dict[str, Any]) -> Any:
    codec = _BY_TAG.get(str(value[TAG]))
    if codec is None:
        return value
    try:
        return codec.decode({key: item for key, item in value.items() if key != TAG})
    except ImportError:
        return value
    except _INVALID as error:
        raise ValueError(f"A value with the tag {value[TAG]!r} is invalid: {error}") from error


class _Encoder:
    """One call of `encode`: a converted object is kept, because an iterator can be read only once."""

    def __init__(self) -> None:
        self._converted: dict[int, tuple[Any, Any]] = {}

    def dumps(self, value: Any) -> str:
        return json.JSONEncoder(**_STRICT, default=self._convert).encode(value)

    def plain(self, value: Any, path: str) -> Any:
        """Return plain JSON values. Raises `NotSerializable`."""
        if value is None or isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {TAG: "float", "value": _FLOATS[str(float(value))]}
        if isinstance(value, str):
            return _checked(value, path)
        if isinstance(value, dict):
            return {
                _key(key, path): self.plain(
                    item, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        try:
            converted = self._convert(value)
        except NotSerializable as error:
            raise NotSerializable(path, str(error).partition(": ")[2]) from error
        except (TypeError, ValueError) as error:
            raise NotSerializable(path, f"{_described(error, value)}. {_REMEDY}") from error
        return self.plain(converted, path)

    def _convert(self, value: Any) -> Any:
        entry = self._converted.get(id(value))
        if entry is None:
            entry = self._converted[id(value)] = (value, self._converted_once(value))
        return entry[1]

    def _converted_once(self, value: Any) -> Any:
        codec = codec_of(type(value))
        if codec is not None:
            return codec.to_json(value)
        if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, set | frozenset | deque):
            return list(value)
        if isinstance(value, Iterator | range):
            return _items(iter(value))
        # Dates, UUIDs, paths, decimals, enumerations, and pydantic models.
        return _model_fields(value, self.convert_part)

    def convert_part(self, value: Any) -> Any:
        """Return the part of a pydantic model that pydantic does not know as JSON."""
        if codec_of(type(value)) is None:
            raise PydanticSerializationError(f"{_name(value)} {_UNKNOWN}")
        return self.plain(value, "")


class _IteratorRaised(Exception):
    """An iterator raised: it cannot be read again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _model_fields(value: Any, convert_part: Callable[[Any], Any], *, by_alias: bool = True) -> Any:
    try:
        return to_jsonable_python(value, by_alias=by_alias, fallback=convert_part)
    except ValueError as error:
        # Pydantic takes bytes for text in UTF-8.
        if not isinstance(value, BaseModel) or not (
            isinstance(error, UnicodeDecodeError) or "invalid utf-8" in str(error)
        ):
            raise
        return dict(value)


def _items(value: Iterator[Any]) -> list[Any]:
    try:
        items = list(islice(value, MAX_ITEMS + 1))
    except (ValueError, TypeError, RecursionError) as error:
        raise _IteratorRaised(error) from error
    if len(items) > MAX_ITEMS:
        raise NotSerializable(
            "", f"an iterator may have at most {MAX_ITEMS:,} items. Return a list or a file"
        )
    return items


def _key(key: Any, path: str) -> str:
    """Return a field name as text."""
    place = f"a field name in {path}"
    if isinstance(key, float) and not math.isfinite(key):
        raise NotSerializable(place, f"{key} is not JSON")
    if isinstance(key, str):
        return _checked(key, place)
    codec = codec_of(type(key))
    try:
        plain_key = key if codec is None or codec.tag is not None else codec.encode(key)
        return str(next(iter(to_jsonable_python({plain_key: None}))))
    except (TypeError, ValueError) as error:
        raise NotSerializable(place, f"{_name(key)} cannot be a field name. Use text") from error


def _checked(text: str, path: str) -> str:
    if text.encode("utf-8", "ignore").decode() != text:
        raise NotSerializable(path, "the text is not JSON: it has half of a surrogate pair")
    return text


def _described(error: Exception, value: Any) -> str:
    is_described = isinstance(error, PydanticSerializationError) and _UNKNOWN in str(error)
    return str(error) if is_described else f"{_name(value)}: {error}"


def _name(value: Any) -> str:
    cls = value if isinstance(value, type) else type(value)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return f"the class {name}" if isinstance(value, type) else f"an object of {name}"


_UNKNOWN = "cannot be encoded"
_STRICT: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
_PLAIN = json.JSONEncoder(**_STRICT)
_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
# What libraries raise for objects that are not as their codec encodes them.
_INVALID = (
    *(LookupError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, AssertionError, NotImplementedError),
)
_NO_TAG: Callable[[dict[str, Any]], Any] = dict

register_named("builtins.float", Codec("float", float, lambda encoded: float(encoded["value"])))
register_named(
    "builtins.bytes",
    Codec("bytes", lambda value: {"data": to_base64(value)}, lambda encoded: from_base64(encoded["data"])),
)
register_named("zndraw_joblib.Output", Codec(None, encode_output, _NO_TAG))
for _name_of_bytes in ("bytearray", "memoryview"):
    register_named(f"builtins.{_name_of_bytes}", Codec(None, bytes, _NO_TAG))
register_named(
    "builtins.complex",
    Codec(
        "complex",
        lambda value: {"real": value.real, "imag": value.imag},
        lambda encoded: complex(encoded["real"], encoded["imag"]),
    ),
)


def to_base64(data: bytes | memoryview) -> str:
    """Return bytes as standard base64."""
    return b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """Return the bytes of standard base64. Raises ValueError."""
    return b64decode(text, validate=True)
