"""Jobs from functions: `@job` makes a function the `run` of an extension whose fields are its parameters."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from zndraw_joblib.contract.docstrings import summary_of
from zndraw_joblib.contract.extensions import DEFAULT_CATEGORY, Category, Extension
from zndraw_joblib.contract.names import GLOBAL, is_name, validate_room_id
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.signatures import VIS, JobSignature, signature_of, wrong_parameter
from zndraw_joblib.contract.task_context import TaskContext

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # its own name is private

Call = ParamSpec("Call")
Payload = ParamSpec("Payload")
Result = TypeVar("Result")


class JobFunction(ModelMetaclass, Generic[Call, Payload, Result]):
    """A function that is a job: an extension class whose call calls the function."""

    category: str
    job_room: str
    __wrapped__: Callable[..., Any]
    __job_signature__: JobSignature

    def __call__(cls, *args: Call.args, **kwargs: Call.kwargs) -> Result:
        """Call the function here, without a queue."""
        return cls.__wrapped__(*args, **kwargs)  # type: ignore[no-any-return]

    def task(cls, *args: Payload.args, **kwargs: Payload.kwargs) -> Extension:
        """Return a task of the job, to submit: the arguments are those of the function.

        What the worker adds, the running task and `vis`, is left out. Raises TypeError for arguments that
        the function does not take, and pydantic's ValidationError for values of a wrong type.
        """
        try:
            payload = cls.__job_signature__.payload.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.task(): {error}") from None
        return cls.model_validate(payload)  # type: ignore[attr-defined, no-any-return]

    def __repr__(cls) -> str:
        return f"<job {cls.__module__}.{cls.__qualname__}>"


class _FunctionJob(Extension, metaclass=JobFunction):
    # A typo in an argument is an error, as it is in a call.
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def run(self, vis: Any, *, task: TaskContext | None = None, **kwargs: Any) -> Any:
        """Call the function with the fields, the running task and the worker's context."""
        cls = type(self)
        signature: JobSignature = cls.__job_signature__
        added: dict[str, Any] = dict.fromkeys(signature.tasks, task)
        if signature.takes_vis:
            added[VIS] = vis
        return cls.__wrapped__(**{name: getattr(self, name) for name in signature.fields}, **added)


class JobDecorator(Protocol):
    """What `job` with options returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext, Payload], Result], /
    ) -> JobFunction[Concatenate[TaskContext, Payload], Payload, Result]: ...
    @overload
    def __call__(self, function: Callable[Call, Result], /) -> JobFunction[Call, Call, Result]: ...


@overload
def job(
    function: Callable[Concatenate[TaskContext, Payload], Result], /
) -> JobFunction[Concatenate[TaskContext, Payload], Payload, Result]: ...
@overload
def job(function: Callable[Call, Result], /) -> JobFunction[Call, Call, Result]: ...
@overload
def job(
    *, name: str | None = ..., category: Category | str = ..., policy: JobPolicy | None = ..., room: str = ...
) -> JobDecorator: ...
def job(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    category: Category | str = DEFAULT_CATEGORY,
    policy: JobPolicy | None = None,
    room: str = GLOBAL,
) -> Any:
    """Make a function or a coroutine function a job, wherever an `Extension` class is one.

    The parameters are the fields of the payload: their annotations make its JSON Schema, a parameter with a
    default may be left out, and a payload with another field is refused. The docstring's first paragraph
    describes the job, and its section "Args:" or "Parameters" the fields. A parameter annotated with
    `TaskContext` gets the running task, and one named `vis` what the worker's ``--context`` returns.

    `name` is the last part of the job's full name, by default the function's; `policy` and `room` hold where
    the registration gives no others. A call still calls the function; `area.task(width=3)` is a task of it,
    to submit. Raises TypeError for a function that cannot be a job; it names the parameter and the remedy.
    """
    given: dict[str, Any] = {"category": _checked_category(category), "job_room": validate_room_id(room)}
    if policy is not None:
        given["policy"] = _checked_policy(policy)

    def decorate(function: Any) -> Any:
        _check_function(function)
        cls = _job_class(function, name or function.__name__, signature_of(function))
        for attribute, value in given.items():
            setattr(cls, attribute, value)
        return cls

    return decorate if function is None else decorate(function)


def _check_function(function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(
            f"@job is for functions, and {function.__qualname__} is a class: derive it from Extension"
        )
    if not inspect.isfunction(function):
        raise TypeError(f"@job needs a function, not {function!r:.100}: call it in a function of its own")
    if function.__name__ == "<lambda>":
        raise TypeError("@job: a lambda has no name: define the function with def")


def _job_class(function: Callable[..., Any], name: str, signature: JobSignature) -> Any:
    if not is_name(name):
        raise TypeError(
            f"@job: {name!r:.100} cannot be the name of a job: use letters, digits, '_', '-' and '.'"
        )
    try:
        cls: Any = create_model(
            name,
            __base__=_FunctionJob,
            __module__=function.__module__,
            __doc__=function.__doc__,
            __cls_kwargs__={"json_schema_extra": _description(function)},
            **dict[str, Any](signature.fields),
        )
        cls.model_json_schema()
    except PydanticUserError as error:
        raise _unusable(function, signature, error) from error
    cls.__qualname__ = function.__qualname__
    cls.__signature__ = signature.call
    cls.__wrapped__, cls.__job_signature__ = function, signature
    return cls


def _description(function: Callable[..., Any]) -> dict[str, Any] | None:
    summary = summary_of(function.__doc__)
    return None if summary is None else {"description": summary}


def _unusable(function: Callable[..., Any], signature: JobSignature, error: PydanticUserError) -> TypeError:
    """Return the error of the first parameter without a JSON Schema."""
    for name, (annotation, _) in signature.fields.items():
        try:
            TypeAdapter(annotation).json_schema()
        except PydanticUserError:
            shown = getattr(annotation, "__qualname__", repr(annotation))
            why = f"has the type {shown}, which has no JSON Schema"
            remedy = "use a type that JSON can express, or a validator with json_schema_input_type"
            return wrong_parameter(function, name, why, remedy)
    return TypeError(f"@job: {function.__qualname__}() has no JSON Schema: {error.message}")


def _checked_policy(policy: JobPolicy) -> JobPolicy:
    if not isinstance(policy, JobPolicy):
        raise TypeError(f"@job: policy must be a JobPolicy, not {policy!r:.100}")
    return policy


def _checked_category(category: Category | str) -> str:
    text = str(getattr(category, "value", category))
    if not is_name(text):
        raise ValueError(f"@job: category {text!r:.100} must be letters, digits, '_', '-' and '.'")
    return text
