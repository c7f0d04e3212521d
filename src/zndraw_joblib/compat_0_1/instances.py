"""Models of version 0.1.x that extend current ones; `isinstance` accepts instances of these too."""

from pydantic import BaseModel


# pydantic does not export the class of its classes.
class OldModel(type(BaseModel)):  # type: ignore[misc]
    """The type of an old model, whose base is the current one: `isinstance` accepts both."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__bases__[0] in type(instance).__mro__
