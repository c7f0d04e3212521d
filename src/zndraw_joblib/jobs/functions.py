"""Jobs from functions with `@job`: the fields of the payload come from the signature and the docstring."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from zndraw_joblib.jobs.batches import Batch, BatchExtension, check_batch, check_no_generator
from zndraw_joblib.jobs.extensions import Category, Extension, PolicyOptions, policy_of
from zndraw_joblib.jobs.failures import describe_errors
from zndraw_joblib.jobs.outputs import has_output, with_outputs
from zndraw_joblib.jobs.task_context import TaskContext
from zndraw_joblib.wire.names import DEFAULT_CATEGORY, GLOBAL, is_name, unknown_text, validate_room_id
from zndraw_joblib.wire.policy import JobPolicy, WithoutWorkers
from zndraw_joblib.wire.schedules import ScheduleTimes

_GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters):$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)(?: *\([^)]*\))?: *(.*)$")
_NUMPY = re.compile(r"^Parameters\n-{3,}$", re.MULTILINE)
_NUMPY_ENTRY = re.compile(r"^(\w+(?:, *\w+)*)(?: *:.*)?$")
_UNDERLINE = re.compile(r"^-{3,}$")


def summary_of(docstring: str | None) -> str | None:
    """Return the first paragraph on one line, None if there is none."""
    first = inspect.cleandoc(docstring or "").partition("\n\n")[0]
    return " ".join(first.split()) or None


def parameters_of(docstring: str | None) -> dict[str, str]:
    """Return the texts of the parameters that a docstring describes, each on one line."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        if _GOOGLE.match(line):
            entries |= _google_entries(lines[number + 1 :])
        elif _NUMPY.match("\n".join(lines[number : number + 2])):
            entries |= _numpy_entries(lines[number + 2 :])
    texts = {name: " ".join(" ".join(text).split()) for name, text in entries.items()}
    return {name: text for name, text in texts.items() if text}


def _google_entries(lines: list[str]) -> dict[str, list[str]]:
    """Return the entries of a section: its lines are indented, and those that go on with an entry more."""
    entries: dict[str, list[str]] = {}
    indent = None
    text: list[str] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line and not depth:
            break
        indent = depth if indent is None and line else indent
        entry = _GOOGLE_ENTRY.match(line.strip()) if depth == indent else None
        if entry:
            text = entries[entry[1]] = [entry[2]]
        else:
            text.append(line)
    return entries


def _numpy_entries(lines: list[str]) -> dict[str, list[str]]:
    """Return the entries of a section: its names are not indented, and their texts are."""
    entries: dict[str, list[str]] = {}
    text: list[str] = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.match(after):
            break
        entry = _NUMPY_ENTRY.match(line)
        if entry:
            text = []
            entries |= dict.fromkeys(re.split(", *", entry[1]), text)
        else:
            text.append(line)
    return entries


# What a job needs from its function's signature: the fields of its payload, and what the worker adds.

VIS = "vis"
_Kind = inspect.Parameter
_STARS: dict[Any, str] = {_Kind.VAR_POSITIONAL: "*", _Kind.VAR_KEYWORD: "**"}
_TAKEN = frozenset({"policy"}).union(dir(Extension))


@dataclass(frozen=True, slots=True)
class JobSignature:
    """The parameters of a job's function.

    `fields` are those of the payload, with their annotations and defaults as `pydantic.create_model` takes
    them; `tasks` get the running task, and with `takes_vis` the parameter `vis` gets the worker's context.

    Of a batch, `tasks` get the running tasks, and each other parameter a list: with `item` it is the only
    one, and gets instances of this model, whose fields are those of the payload.
    """

    fields: Mapping[str, tuple[Any, Any]]
    tasks: tuple[str, ...]
    takes_vis: bool
    call: inspect.Signature
    item: tuple[str, type[BaseModel]] | None = None

    @property
    def payload(self) -> inspect.Signature:
        """Return the signature without what the worker adds."""
        if self.item is not None:
            return inspect.signature(self.item[1])
        parameters = [one for name, one in self.call.parameters.items() if name in self.fields]
        return self.call.replace(parameters=parameters)


def signature_of(function: Callable[..., Any]) -> JobSignature:
    """Return what a job needs from a function. Raises TypeError that names the parameter and the remedy."""
    signature = inspect.signature(function)
    docs = parameters_of(function.__doc__)
    fields: dict[str, tuple[Any, Any]] = {}
    tasks: list[str] = []
    for name, parameter in signature.parameters.items():
        _check_kind(function, parameter)
        if name == VIS:
            continue
        annotation = _annotation(function, parameter)
        if _is_task(annotation):
            tasks.append(name)
        else:
            _check_field(function, parameter)
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (_described(annotation, docs.get(name)), default)
    return JobSignature(fields, tuple(tasks), VIS in signature.parameters, signature)


def batch_signature_of(function: Callable[..., Any]) -> JobSignature:
    """Return what a job that takes a batch needs from a function: each parameter is a list.

    Raises TypeError that names the parameter and the remedy.
    """
    check_no_generator(function)
    signature = inspect.signature(function)
    docs = parameters_of(function.__doc__)
    fields: dict[str, tuple[Any, Any]] = {}
    models: list[type[BaseModel]] = []
    tasks: list[str] = []
    for name, parameter in signature.parameters.items():
        _check_kind(function, parameter)
        item = _item_of(function, parameter)
        if _is_task(item):
            tasks.append(name)
            continue
        if parameter.default is not parameter.empty:
            remedy = "take one list of a pydantic model, whose fields have defaults"
            raise wrong_parameter(
                function, name, "has a default, and a batch has a value of each task", remedy
            )
        _check_field(function, parameter)
        fields[name] = _described(item, docs.get(name)), ...
        if isinstance(item, type) and issubclass(item, BaseModel):
            models.append(item)
    if len(fields) == 1 and models:
        [name], [model] = fields, models
        _check_model(function, name, model)
        # The job inherits the fields.
        return JobSignature({}, tuple(tasks), False, signature, (name, model))
    return JobSignature(fields, tuple(tasks), False, signature)


def _item_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return of what a parameter is a list."""
    annotation = _annotation(function, parameter)
    if get_origin(annotation) in {list, Sequence} and parameter.name != VIS:
        return get_args(annotation)[0]
    if parameter.name == VIS or _is_task(annotation):
        why, remedy = "is of one task, and a batch has several", "take list[TaskContext]"
    else:
        why, remedy = "gets the values of several tasks", f"write {parameter.name}: list[…]"
    raise wrong_parameter(function, parameter.name, why, remedy)


def _check_model(function: Callable[..., Any], parameter: str, model: type[BaseModel]) -> None:
    """Raise TypeError if a job cannot have the fields of a model."""
    if issubclass(model, RootModel | Extension):
        remedy = "write a pydantic model with the fields of the payload"
        raise wrong_parameter(function, parameter, f"is a list of {model.__qualname__}", remedy)
    if names := sorted(model.model_fields.keys() & _TAKEN):
        why = f"is a list of {model.__qualname__}, whose field {names[0]!r} has a name that Extension uses"
        raise wrong_parameter(function, parameter, why, f"rename it, for example to {names[0]}_value")


def wrong_parameter(function: Callable[..., Any], name: str, why: str, remedy: str) -> TypeError:
    """Return the error of a parameter that no job can have."""
    return TypeError(f"@job: the parameter {name!r} of {function.__qualname__}() {why}: {remedy}")


def _check_kind(function: Callable[..., Any], parameter: inspect.Parameter) -> None:
    name = parameter.name
    if stars := _STARS.get(parameter.kind):
        remedy = "write each parameter out, or take one list or dict"
        raise wrong_parameter(function, f"{stars}{name}", "has no names for the job's schema", remedy)
    if parameter.kind is _Kind.POSITIONAL_ONLY:
        raise wrong_parameter(function, name, "is positional-only, and a payload has names", "remove the '/'")


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    name = parameter.name
    if parameter.annotation is parameter.empty:
        remedy = f"write {name}: float, for example, or {name}: TaskContext for the running task"
        raise wrong_parameter(function, name, "has no annotation, which the job's schema needs", remedy)
    holder = SimpleNamespace(__annotations__={name: parameter.annotation})
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=namespace, include_extras=True)[name]
    # An annotation may be any code.
    except Exception as error:
        why = f"has the annotation {parameter.annotation!r}, which cannot be evaluated ({error})"
        remedy = "define or import it at the top level of the module, above the function, at run time"
        raise wrong_parameter(function, name, why, remedy) from error


def _check_field(function: Callable[..., Any], parameter: inspect.Parameter) -> None:
    name = parameter.name
    if name.startswith("_") or name in _TAKEN:
        remedy = f"rename it, for example to {name.strip('_')}_value"
        raise wrong_parameter(function, name, "has a name that pydantic or Extension uses", remedy)
    if isinstance(parameter.default, FieldInfo):
        remedy = f"write {name}: Annotated[…, Field(…)]"
        raise wrong_parameter(function, name, "has Field(…) as its default, which a call would get", remedy)


def _is_task(annotation: Any) -> bool:
    """Return whether an annotation is `TaskContext`, or `TaskContext | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_task(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        kinds = set(get_args(annotation)) - {NoneType}
        return bool(kinds) and all(map(_is_task, kinds))
    return isinstance(annotation, type) and issubclass(annotation, TaskContext)


def _described(annotation: Any, text: str | None) -> Any:
    own = getattr(annotation, "__metadata__", ())
    if text is None or any(getattr(one, "description", None) for one in own):
        return annotation
    return Annotated[annotation, Field(description=text)]


# Jobs from functions: `@job` makes a function the `run` of an extension whose fields are its parameters.

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # its own name is private

Call = ParamSpec("Call")
Payload = ParamSpec("Payload")
Result = TypeVar("Result")
# A running task, which has no place in the payload.
Context = TypeVar("Context", bound=TaskContext)


# The methods of functions of Celery, RQ, Dramatiq, taskiq and Huey that submit a task.
_CALLS_ELSEWHERE = {"apply_async", "delay", "enqueue", "kiq", "s", "schedule", "send", "si"}


class JobFunction(ModelMetaclass, Generic[Call, Payload, Result]):
    """A function that is a job: an extension class that is called like the function."""

    category: str
    job_room: str
    policy: JobPolicy
    job_schedule: ScheduleTimes | None
    __wrapped__: Callable[..., Any]
    __job_signature__: JobSignature

    def __call__(cls, *args: Call.args, **kwargs: Call.kwargs) -> Result:
        """Call the function here, without a queue."""
        return cls.__wrapped__(*args, **kwargs)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            """Explain how to submit, for the methods by which other queues do. Raises AttributeError."""
            if name not in _CALLS_ELSEWHERE:
                return super().__getattr__(name)
            raise AttributeError(
                f"{cls!r} has no {name!r}, because a job knows no queue: "
                f"submit it with Queue().submit({cls.__qualname__}.task(…))"
            )

    if TYPE_CHECKING:  # of the class that a job is

        def model_json_schema(cls) -> dict[str, Any]:
            """Return the JSON Schema of the job's payload."""

    def task(cls, *args: Payload.args, **kwargs: Payload.kwargs) -> Extension:
        """Return a task of the job, to submit: the arguments are those of the function.

        What the worker adds, the running task and `vis`, is left out. If a type checker reports the running
        task as missing here, make it the first parameter of the function, or give it the default None: types
        cannot remove another one. Raises TypeError for arguments that the function does not take, and
        pydantic's ValidationError for values of a wrong type.
        """
        try:
            payload = cls.__job_signature__.payload.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.task(): {error}") from None
        if any(map(has_output, payload.values())):
            return with_outputs(cls, payload)  # type: ignore[arg-type]
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


class _FunctionBatch(BatchExtension, metaclass=JobFunction):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @classmethod
    def run_batch(cls, inputs: Sequence[Any], *, tasks: Sequence[TaskContext | None], **kwargs: Any) -> Any:
        """Call the function with lists of the fields, and the running tasks."""
        signature: JobSignature = cls.__job_signature__
        added: dict[str, Any] = {name: list(tasks) for name in signature.tasks}
        if signature.item is not None:
            return cls.__wrapped__(**{signature.item[0]: list(inputs)}, **added)
        columns = {name: [getattr(one, name) for one in inputs] for name in signature.fields}
        return cls.__wrapped__(**columns, **added)


class BatchDecorator(Protocol):
    """What `job` with a `batch` returns. A payload has one value where the function has a list."""

    def __call__(self, function: Callable[Call, Result], /) -> JobFunction[Call, ..., Result]:
        """Make a function a job."""


class JobDecorator(Protocol):
    """What `job` with options returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Payload], Result], /
    ) -> JobFunction[Concatenate[Context, Payload], Payload, Result]: ...
    @overload
    def __call__(self, function: Callable[Call, Result], /) -> JobFunction[Call, Call, Result]: ...


@overload
def job(
    function: Callable[Concatenate[Context, Payload], Result], /
) -> JobFunction[Concatenate[Context, Payload], Payload, Result]: ...
@overload
def job(function: Callable[Call, Result], /) -> JobFunction[Call, Call, Result]: ...
@overload
def job(
    *,
    name: str | None = ...,
    category: Category | str = ...,
    policy: JobPolicy | None = ...,
    room: str = ...,
    schedule: ScheduleTimes | str | None = ...,
    batch: None = ...,
    **options: Unpack[PolicyOptions],
) -> JobDecorator: ...
@overload
def job(
    *,
    name: str | None = ...,
    category: Category | str = ...,
    policy: JobPolicy | None = ...,
    room: str = ...,
    schedule: ScheduleTimes | str | None = ...,
    batch: Batch,
    **options: Unpack[PolicyOptions],
) -> BatchDecorator: ...
def job(  # noqa: PLR0913 - the options of a job
    function: Any = None,
    /,
    *,
    name: str | None = None,
    category: Category | str = DEFAULT_CATEGORY,
    policy: JobPolicy | None = None,
    room: str = GLOBAL,
    schedule: ScheduleTimes | str | None = None,
    batch: Batch | None = None,
    **options: Unpack[PolicyOptions],
) -> Any:
    """Make a function or a coroutine function a job, wherever an `Extension` class is one.

    The parameters are the fields of the payload: their annotations make its JSON Schema, a parameter with a
    default may be left out, and a payload with another field is refused. The docstring's first paragraph
    describes the job, and its section "Args:" or "Parameters" the fields. A parameter annotated with
    `TaskContext` gets the running task, and one named `vis` what the worker's ``--context`` returns.

    `name` is the last part of the job's full name, by default the function's; `policy` and `room` hold where
    the registration gives no others. The fields of a policy may be keywords too, as
    ``max_attempts=3``. Unless the policy sets `without_workers`, tasks wait while no worker serves the job.
    `schedule`, a cron expression or a `ScheduleTimes`, submits tasks of it in the job's room. A call still
    calls the function; `area.task(width=3)` is a task of it, to submit. Raises TypeError for a function that
    cannot be a job; it names the parameter and the remedy.

    With `batch` one call runs several tasks: each parameter is a list with a value of each task, or one list
    of a pydantic model, whose fields are those of the payload; `list[TaskContext]` gets the running tasks.
    The function returns a list with one result, or one exception, for each task.
    """
    attributes: dict[str, Any] = {"category": _checked_category(category), "job_room": validate_room_id(room)}
    attributes["policy"] = queuing(_policy_with(policy or JobPolicy(), options))

    def decorate(function: Any) -> Any:
        _check_function(function)
        if schedule is not None:
            attributes["job_schedule"] = _checked_schedule(schedule, name or function.__name__)
        cls = _job_or_batch(function, name or function.__name__, batch)
        for attribute, value in attributes.items():
            setattr(cls, attribute, value)
        return cls

    return decorate if function is None else decorate(function)


def _job_or_batch(function: Any, name: str, batch: Batch | None) -> Any:
    if batch is None:
        return _job_class(function, name, signature_of(function))
    cls = _job_class(function, name, batch_signature_of(function), _FunctionBatch)
    check_batch(batch, cls)
    cls.job_batch = batch
    return cls


def _check_function(function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(
            f"@job is for functions, and {function.__qualname__} is a class: derive it from Extension"
        )
    if not inspect.isfunction(function):
        raise TypeError(f"@job needs a function, not {function!r:.100}: call it in a function of its own")
    if function.__name__ == "<lambda>":
        raise TypeError("@job: a lambda has no name: define the function with def")


def _job_class(
    function: Callable[..., Any], name: str, signature: JobSignature, base: type[Extension] = _FunctionJob
) -> Any:
    if not is_name(name):
        raise TypeError(
            f"@job: {name!r:.100} cannot be the name of a job: use letters, digits, '_', '-' and '.'"
        )
    create: Any = create_model
    try:
        cls = create(
            name,
            __base__=base if signature.item is None else (base, signature.item[1]),
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


def queuing(policy: JobPolicy) -> JobPolicy:
    """Return a policy that lets tasks wait for a worker, unless it sets `without_workers`."""
    if "without_workers" in policy.model_fields_set:
        return policy
    return policy.model_copy(update={"without_workers": WithoutWorkers.QUEUE})


def _policy_with(policy: JobPolicy, options: PolicyOptions) -> JobPolicy:
    """Return a policy with more fields set."""
    if not isinstance(policy, JobPolicy):
        raise TypeError(f"@job: policy must be a JobPolicy, not {policy!r:.100}")
    known = [*JobPolicy.model_fields, "name", "category", "policy", "room", "schedule"]
    if unknown := set(options) - set(known):
        raise TypeError(unknown_text("@job", unknown, known))
    fields = policy_of(options, "@job")
    if twice := sorted(fields.model_fields_set & policy.model_fields_set):
        raise TypeError(f"@job: {twice[0]} is in the policy and a keyword: say it once")
    return policy.model_copy(update={name: getattr(fields, name) for name in fields.model_fields_set})


def _checked_schedule(schedule: ScheduleTimes | str, job: str) -> ScheduleTimes:
    try:
        times = ScheduleTimes(cron=schedule) if isinstance(schedule, str) else schedule
    except ValidationError as error:
        raise ValueError(f"@job: schedule of {job}: {describe_errors(error)}") from error
    if not isinstance(times, ScheduleTimes):
        raise TypeError(
            f"@job: schedule of {job} must be a cron expression or ScheduleTimes(…), not {schedule!r:.100}"
        )
    return times


def _checked_category(category: Category | str) -> str:
    text = str(getattr(category, "value", category))
    if not is_name(text):
        raise ValueError(f"@job: category {text!r:.100} must be letters, digits, '_', '-' and '.'")
    return text
