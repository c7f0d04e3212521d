"""The module `provider` of version 0.1.x. See `docs/how-to/migrate-from-0.1.md`."""

from zndraw_joblib.compat_0_1.names import old_module

__all__, __getattr__, __dir__ = old_module("provider")
