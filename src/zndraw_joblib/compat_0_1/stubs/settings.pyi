from zndraw_joblib.server.http.dependencies import JobLibSettingsDep as JobLibSettingsDep
from zndraw_joblib.server.process.settings import JobLibSettings as JobLibSettings
