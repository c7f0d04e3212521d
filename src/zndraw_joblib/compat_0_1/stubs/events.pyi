from zndraw_joblib.compat_0_1.messages import ProviderRequest as ProviderRequest
from zndraw_joblib.compat_0_1.messages import TaskAvailable as TaskAvailable
from zndraw_joblib.compat_0_1.messages import TaskStatusEvent as TaskStatusEvent
from zndraw_joblib.compat_0_1.messages import build_task_status_emission as build_task_status_emission
from zndraw_joblib.server.realtime.publisher import emit as emit
from zndraw_joblib.wire.events import Emission as Emission
from zndraw_joblib.wire.events import Event as Event
from zndraw_joblib.wire.events import JobsInvalidate as JobsInvalidate
from zndraw_joblib.wire.events import JoinJobRoom as JoinJobRoom
from zndraw_joblib.wire.events import JoinProviderRoom as JoinProviderRoom
from zndraw_joblib.wire.events import LeaveJobRoom as LeaveJobRoom
from zndraw_joblib.wire.events import LeaveProviderRoom as LeaveProviderRoom
from zndraw_joblib.wire.events import ProviderResultReady as ProviderResultReady
from zndraw_joblib.wire.events import ProvidersInvalidate as ProvidersInvalidate

FrozenEvent = Event
