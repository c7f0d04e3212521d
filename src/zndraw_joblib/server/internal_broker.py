"""For ``taskiq worker zndraw_joblib.server.internal_broker:broker``; the environment says the settings."""

from zndraw_joblib.server.inside import worker_broker
from zndraw_joblib.server.settings import ServerSettings

broker = worker_broker(ServerSettings())
