"""Names and behaviour of version 0.1.x, for code that was written against it. No other package imports it.

`zndraw_joblib.__path__` contains the folder `paths`, so that ``import zndraw_joblib.models`` and the other
import paths of version 0.1.x find the modules there. Each use of a name is a `DeprecationWarning` that says
what to use instead; `names` has them all.
"""
