from zndraw_joblib.compat_0_1.messages import TERMINAL_STATUSES as TERMINAL_STATUSES
from zndraw_joblib.compat_0_1.messages import VALID_TRANSITIONS as VALID_TRANSITIONS
from zndraw_joblib.compat_0_1.rows import ProviderRecord as ProviderRecord
from zndraw_joblib.compat_0_1.rows import Task as Task
from zndraw_joblib.compat_0_1.rows import Worker as Worker
from zndraw_joblib.server.db.tables import Job as Job
from zndraw_joblib.server.db.tables import WorkerJobLink as WorkerJobLink
from zndraw_joblib.wire.statuses import TaskStatus as TaskStatus
