"""The predecessors of a submit: tasks, groups, and values of its payload that stand for their results."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator

from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.successors import RESULT_VALUE, ResultOf, result_nodes, value_at, with_referenced

Model = TypeVar("Model", bound=BaseModel)


class Output:
    """The part of a task's result that `pointer` (RFC 6901) names, as a value in the payload of a later task.

    `task` is a handle, a `TaskResponse`, an id, or a `NewTask` that the same call submits before. A submit
    with an output waits for its task. Raises ValueError for a pointer that is none.
    """

    __slots__ = ("pointer", "task")

    def __init__(self, task: Any, pointer: str = "") -> None:
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
            raise ValueError(
                f"pointer: {pointer!r:.100} is no JSON pointer: pass '/name', '/list/0', or '' for all"
            )
        self.task = str(task.id) if isinstance(task, TaskResponse) else task
        self.pointer = pointer

    def __repr__(self) -> str:
        return f"<Output {self.pointer or 'of all'} of task {self.task!r:.60}>"


def encode_output(output: Output) -> dict[str, Any]:
    """Return an output as JSON; the server replaces it before a worker gets it."""
    task = str(output.task) if isinstance(output.task, str | UUID) else _token_of(output.task)
    value = {"task": task, "pointer": output.pointer} if output.pointer else {"task": task}
    return {RESULT_VALUE: value}


def _token_of(task: object) -> str:
    """Return what stands for a task that has no id yet, until its call is sent."""
    return f"{_NEW}{id(task):x}"


_NEW = "new-task-"


# Large results, which the program that runs a task puts into its payload.

# Instead of a payload: why a result that it needs is not there.
PAYLOAD_FAULT = "$result-fault"


class UnusableResult(Exception):
    """A payload cannot have a result: it has no such part, its content is invalid, or it is gone."""


def with_parts(payload: dict[str, Any], read: Callable[[UUID], Any]) -> dict[str, Any]:
    """Return a payload with parts of results in the places of references to them.

    `read` returns the result of a task as plain JSON, or raises `UnusableResult`. If it does, or a result has
    no such part, the payload has only `PAYLOAD_FAULT`.
    """

    def part_of(result: ResultOf) -> Any:
        if not isinstance(result.task, UUID):
            raise AssertionError("a reference has an id")
        value = read(result.task)
        try:
            return value_at(value, result.pointer)
        except (LookupError, ValueError):
            raise UnusableResult(
                f"The result of task {result.task} has nothing at {result.pointer!r}"
            ) from None

    try:
        filled: dict[str, Any] = with_referenced(payload, part_of)
    except UnusableResult as error:
        return {PAYLOAD_FAULT: str(error)}
    return filled


# Which tasks and groups a submit waits for.


class GroupHandle:
    """A group, as `after` takes it: by its id. `has_followers`: a task was to wait for this object."""

    has_followers = False

    @property
    def id(self) -> UUID:
        """The id of the group."""
        raise NotImplementedError


class EarlierTasks:
    """The tasks without an id that one call submits, in order: later ones name them by their index."""

    def __init__(self, *, is_atomic: bool = False) -> None:
        self._is_atomic = is_atomic
        self._tasks: list[object] = []
        self._indexes: dict[str, int] = {}

    def add(self, task: object) -> None:
        """Add the next task of the call."""
        self._indexes[_token_of(task)] = len(self._tasks)
        # As long as it lives, no other object has its token.
        self._tasks.append(task)

    def index(self, token: str) -> int:
        """Return the index of a task. Raises ValueError for one that this call does not submit before."""
        if token not in self._indexes:
            raise ValueError(
                "after: a NewTask has no id: submit it first and pass its handle, or submit both with one "
                "submit_many(…, atomic=True), it before the other"
            )
        return self.check(self._indexes[token])

    def check(self, index: int) -> int:
        """Return an index. Raises ValueError unless all tasks of the call are submitted or none."""
        if not self._is_atomic:
            raise ValueError(
                f"after: task {index} of the same call needs submit_many(…, atomic=True): all tasks, or none"
            )
        return index


def after_of(after: Any, payload: Any, earlier: EarlierTasks) -> dict[str, Any] | None:
    """Return what a submit waits for: what `after` names, and the tasks whose results its payload needs.

    `after` is a task or a group, a list of them, or an `After` or a mapping with the lists `tasks` and
    `groups` and with `on_failure`. A task is a handle, a `TaskResponse`, an id, or one of `earlier`, which is
    named by itself or by its index. Values of `payload` that name one of `earlier` get its index. Raises
    ValueError and TypeError.
    """
    fields = _fields_of(after)
    tasks: list[str | int] = []
    groups: list[str] = []
    for item in (*fields.pop("tasks", ()), *fields.pop("groups", ())):
        if isinstance(item, GroupHandle | GroupResponse):
            groups.append(str(item.id))
            if isinstance(item, GroupHandle):
                item.has_followers = True
        else:
            tasks.append(_task_of(item, earlier))
    groups += map(str, fields.pop("ids", ()))
    for node in result_nodes(payload):
        value = node[RESULT_VALUE]
        task = value.get("task") if isinstance(value, dict) else None
        if isinstance(task, str) and task.startswith(_NEW):
            task = value["task"] = earlier.index(task)
        # The server refuses a value that names no task.
        if isinstance(task, str | int):
            tasks.append(task)
    named = {"tasks": list(dict.fromkeys(tasks)), "groups": list(dict.fromkeys(groups))}
    found = fields | {name: items for name, items in named.items() if items}
    return found or None


def _fields_of(after: Any) -> dict[str, Any]:
    """Return the fields of `after`; of groups that are given by their ids, as `ids`."""
    if after is None:
        return {}
    if isinstance(after, BaseModel) and not isinstance(after, TaskResponse | GroupResponse):
        after = {name: getattr(after, name) for name in after.model_fields_set}
    if isinstance(after, Mapping):
        fields = dict(after)
        groups = fields.pop("groups", None) or ()
        fields["ids"] = [item for item in _items(groups) if isinstance(item, str | UUID)]
        fields["groups"] = [item for item in _items(groups) if not isinstance(item, str | UUID)]
        return {**fields, "tasks": _items(fields.get("tasks") or ())}
    return {"tasks": _items(after)}


def _items(value: Any) -> list[Any]:
    """Return a list as it is, and one task or group as a list of it."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | BaseModel)
    return list(value) if is_list else [value]


def _task_of(item: Any, earlier: EarlierTasks) -> str | int:
    if isinstance(item, TaskResponse):
        return str(item.id)
    if isinstance(item, int) and not isinstance(item, bool):
        return earlier.check(item)
    if isinstance(item, str | UUID):
        try:
            return str(UUID(str(item)))
        except ValueError:
            raise ValueError(f"after: {str(item)!r:.100} is not the id of a task") from None
    if hasattr(item, "job") and hasattr(item, "payload"):
        return earlier.index(_token_of(item))
    raise TypeError(f"after: {item!r:.99} is no task or group: pass handles, ids, groups, or an After")


def has_output(value: Any) -> bool:
    """Return whether a value is an output, or a container with one."""
    if isinstance(value, Output):
        return True
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(has_output(part) for part in parts if isinstance(part, _MAY_HAVE_OUTPUT))


_MAY_HAVE_OUTPUT = (Output, list, tuple, Mapping)


# Jobs with types: a field may have an output instead of a value of its type.


def output_fields(model: BaseModel) -> set[str]:
    """Return the fields of a model that have outputs."""
    return {name for name, value in model.__dict__.items() if has_output(value)}


def with_outputs(cls: type[Model], values: Mapping[str, Any]) -> Model:
    """Return an instance whose fields may have outputs, and all other fields are checked.

    Validators of the whole model do not run: they need values that do not exist yet. Raises pydantic's
    ValidationError.
    """
    model, errors = _unchecked(cls, values)
    outputs = output_fields(model)
    for name in model.model_fields_set - outputs:
        errors += _check_field(model, name)
    if errors:
        raise ValidationError.from_exception_data(cls.__name__, errors)
    return model


def _unchecked(cls: type[Model], values: Mapping[str, Any]) -> tuple[Model, list[InitErrorDetails]]:
    """Return an instance with values as they are, and the errors of missing and of unknown fields."""
    model = cls.__new__(cls)
    left, fields, errors = dict(values), dict[str, Any](), list[InitErrorDetails]()
    names = set[str]()
    for name, field in cls.model_fields.items():
        keys = [key for key in (field.alias, field.validation_alias, name) if isinstance(key, str)]
        key = next((key for key in keys if key in left), None)
        if key is not None:
            fields[name] = left.pop(key)
            names.add(name)
        elif field.is_required():
            errors.append({"type": "missing", "loc": (keys[0],), "input": dict(values)})
        else:
            fields[name] = field.get_default(call_default_factory=True, validated_data=fields)
    extra = cls.model_config.get("extra")
    if extra == "forbid":
        errors += [{"type": "extra_forbidden", "loc": (key,), "input": value} for key, value in left.items()]
    _set_state(model, fields, names, left if extra == "allow" else None)
    return model, errors


def _set_state(
    model: BaseModel, fields: dict[str, Any], names: set[str], extra: dict[str, Any] | None
) -> None:
    object.__setattr__(model, "__dict__", fields)
    object.__setattr__(model, "__pydantic_fields_set__", names)
    object.__setattr__(model, "__pydantic_extra__", extra)
    object.__setattr__(model, "__pydantic_private__", None)


def _check_field(model: BaseModel, name: str) -> list[InitErrorDetails]:
    """Replace the value of a field by the validated one; return its errors."""
    try:
        validator = _fields_validator(type(model))
        validated: Any = validator.validate_assignment(model.__dict__, name, model.__dict__[name])
        model.__dict__[name] = validated[0][name]
    except ValidationError as error:
        return [_detail_of(one) for one in error.errors() if "frozen" not in one["type"]]
    return []


@cache
def _fields_validator(cls: type[BaseModel]) -> SchemaValidator:
    """Return a validator of the fields of a model, without the validators of the whole model."""
    return SchemaValidator(_fields_schema(cls.__pydantic_core_schema__))


def _fields_schema(schema: Any) -> Any:
    if schema["type"] == "definitions":
        inner = schema["schema"]
        if inner["type"] == "definition-ref":  # the model has fields of its own type
            inner = next(one for one in schema["definitions"] if one["ref"] == inner["schema_ref"])
        return {**schema, "schema": _fields_schema(inner)}
    is_around = schema["type"] == "model" or schema["type"].startswith("function-")
    return _fields_schema(schema["schema"]) if is_around else schema


def _detail_of(error: Any) -> InitErrorDetails:
    kind = PydanticCustomError(error["type"], error["msg"])
    return {"type": kind, "loc": error["loc"], "input": error["input"]}


def take_outputs(model: BaseModel, data: Mapping[str, Any]) -> bool:
    """Make a new model of arguments that have outputs; return False if none has. Raises ValidationError."""
    if not any(map(has_output, data.values())):
        return False
    made = with_outputs(type(model), data)
    _set_state(model, made.__dict__, made.model_fields_set, made.model_extra)
    return True
