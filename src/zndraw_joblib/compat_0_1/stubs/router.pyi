from zndraw_joblib.compat_0_1.preferences import parse_prefer_wait as parse_prefer_wait
from zndraw_joblib.compat_0_1.statuses import TERMINAL_STATUSES as TERMINAL_STATUSES
from zndraw_joblib.compat_0_1.statuses import VALID_TRANSITIONS as VALID_TRANSITIONS
from zndraw_joblib.server.http import router as router
