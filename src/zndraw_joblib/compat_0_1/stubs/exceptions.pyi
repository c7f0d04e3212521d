from zndraw_joblib.server.runtime.problem_responses import (
    problem_exception_handler as problem_exception_handler,
)
from zndraw_joblib.wire.problems import Forbidden as Forbidden
from zndraw_joblib.wire.problems import InternalJobNotConfigured as InternalJobNotConfigured
from zndraw_joblib.wire.problems import InvalidCategory as InvalidCategory
from zndraw_joblib.wire.problems import InvalidRoomId as InvalidRoomId
from zndraw_joblib.wire.problems import InvalidTaskTransition as InvalidTaskTransition
from zndraw_joblib.wire.problems import JobNotFound as JobNotFound
from zndraw_joblib.wire.problems import ProblemException as ProblemException
from zndraw_joblib.wire.problems import ProviderNotFound as ProviderNotFound
from zndraw_joblib.wire.problems import ProviderTimeout as ProviderTimeout
from zndraw_joblib.wire.problems import SchemaConflict as SchemaConflict
from zndraw_joblib.wire.problems import TaskNotFound as TaskNotFound
from zndraw_joblib.wire.problems import WorkerNotFound as WorkerNotFound

ProviderTimeoutError = ProviderTimeout
