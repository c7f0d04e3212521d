from zndraw_joblib.compat_0_1.functions import parse_prefer_wait as parse_prefer_wait
from zndraw_joblib.compat_0_1.messages import TERMINAL_STATUSES as TERMINAL_STATUSES
from zndraw_joblib.compat_0_1.messages import VALID_TRANSITIONS as VALID_TRANSITIONS
from zndraw_joblib.server.http import router as router
