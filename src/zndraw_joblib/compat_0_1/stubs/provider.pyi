from zndraw_joblib.jobs.extensions import Provider as Provider
