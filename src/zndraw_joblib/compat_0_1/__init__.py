"""Names and behaviour of version 0.1.x, for code that was written against it.

Only the package `zndraw_joblib` itself refers to it: it finds here ``import zndraw_joblib.models`` and the
other import paths of version 0.1.x, old names of `zndraw_joblib.client`, and old names of columns. Each use
of an old name is a `DeprecationWarning` that says what to use instead; `names` has them all.
"""
