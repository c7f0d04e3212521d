"""For ``taskiq worker zndraw_joblib.server.internal.process:broker``; settings come from the environment."""

from zndraw_joblib.server.internal.setup import worker_broker
from zndraw_joblib.server.process.settings import ServerSettings

broker = worker_broker(ServerSettings())
