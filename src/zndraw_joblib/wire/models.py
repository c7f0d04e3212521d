"""The base of what servers send: responses, problems and events."""

from pydantic import VERSION, BaseModel, ConfigDict

# Before 2.14 pydantic does not lock the build of a model, which two threads may begin at the same time.
_CAN_DEFER = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)


class DeferredModel(BaseModel):
    """A model whose validator and serializer are built at its first use, because no process uses all models.

    The bodies of requests are built at import: FastAPI warns of a deferred body, and a host may have one.
    """

    model_config = ConfigDict(defer_build=_CAN_DEFER)
