from zndraw_joblib.compat_0_1.sweeper import run_sweeper as run_sweeper
from zndraw_joblib.server.background.host_functions import cleanup_stale_workers as cleanup_stale_workers
from zndraw_joblib.server.background.host_functions import (
    cleanup_stuck_internal_tasks as cleanup_stuck_internal_tasks,
)
from zndraw_joblib.server.background.host_functions import cleanup_worker as cleanup_worker
