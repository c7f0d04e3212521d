"""The whole queue against a plain model: whatever is asked in whatever order, both say and hold the same."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from model.ledger import ENDED, INTERVAL, STUCK, TIMEOUT, Ledger, Refusal
from store.fixtures import empty_postgres, sqlite_template
from store.invariants import faults
from store.replica import ADMIN, OWNER, STRANGER, SUBMITTER, HandClock, InternalExecutor
from zndraw_joblib.contract.events import Emission, TaskStatusEvent
from zndraw_joblib.contract.messages import JobRegisterRequest, TaskResponse, TaskUpdateRequest
from zndraw_joblib.contract.names import GLOBAL, INTERNAL, JobName
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity, Page
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import claims, jobs, sweep, tasks, workers
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import Database, Transaction
from zndraw_joblib.server.store.engine import open_database
from zndraw_joblib.server.store.tables import Job, Task, Worker, WorkerJobLink
