"""What a job needs from its function's signature: the fields of its payload, and what the worker adds."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import Field
from pydantic.fields import FieldInfo

from zndraw_joblib.contract.docstrings import parameters_of
from zndraw_joblib.contract.extensions import Extension
from zndraw_joblib.contract.task_context import TaskContext

VIS = "vis"
_Kind = inspect.Parameter
_STARS: dict[Any, str] = {_Kind.VAR_POSITIONAL: "*", _Kind.VAR_KEYWORD: "**"}
_TAKEN = frozenset({"policy"}).union(dir(Extension))


@dataclass(frozen=True, slots=True)
class JobSignature:
    """The parameters of a job's function.

    `fields` are those of the payload, with their annotations and defaults as `pydantic.create_model` takes
    them; `tasks` get the running task, and with `takes_vis` the parameter `vis` gets the worker's context.
    """

    fields: Mapping[str, tuple[Any, Any]]
    tasks: tuple[str, ...]
    takes_vis: bool
    call: inspect.Signature

    @property
    def payload(self) -> inspect.Signature:
        """Return the signature without what the worker adds."""
        kept = [one for name, one in self.call.parameters.items() if name in self.fields]
        return self.call.replace(parameters=kept)


def signature_of(function: Callable[..., Any]) -> JobSignature:
    """Return what a job needs from a function. Raises TypeError that names the parameter and the remedy."""
    found = inspect.signature(function)
    docs = parameters_of(function.__doc__)
    fields: dict[str, tuple[Any, Any]] = {}
    tasks: list[str] = []
    for name, parameter in found.parameters.items():
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
    return JobSignature(fields, tuple(tasks), VIS in found.parameters, found)


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
    one = SimpleNamespace(__annotations__={name: parameter.annotation})
    known = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(one, globalns=known, include_extras=True)[name]
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
