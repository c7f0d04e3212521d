"""The fixtures of the plugin: this environment may have the package without its entry point."""

from zndraw_joblib.testing.plugin import (
    async_joblib_queue,
    joblib_app,
    joblib_database_url,
    joblib_queue,
    joblib_template,
)

__all__ = ["async_joblib_queue", "joblib_app", "joblib_database_url", "joblib_queue", "joblib_template"]
