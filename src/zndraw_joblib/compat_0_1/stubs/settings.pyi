from zndraw_joblib.server.http.access import JobLibSettingsDep as JobLibSettingsDep
from zndraw_joblib.server.process.settings import JobLibSettings as JobLibSettings
