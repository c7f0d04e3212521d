from zndraw_joblib.server.settings import JobLibSettings as JobLibSettings
