"""Public names; `make generate` writes this file from the table of `zndraw_joblib.testing`."""

from zndraw_joblib.testing.job_runs import JobRun as JobRun
from zndraw_joblib.testing.job_runs import run_batch as run_batch
from zndraw_joblib.testing.job_runs import run_job as run_job
from zndraw_joblib.testing.queue import AsyncTestQueue as AsyncTestQueue
from zndraw_joblib.testing.queue import TestQueue as TestQueue
from zndraw_joblib.testing.result_backends import check_result_backend as check_result_backend

_MODULE_OF: dict[str, str]
__all__: list[str]
