"""The stubs of packages whose public names are loaded on first use: type checkers see where each name is."""

from importlib import import_module

PACKAGES = ("zndraw_joblib", "zndraw_joblib.client", "zndraw_joblib.testing")

_LINE = 110
# Names of version 0.1.x have no types.
_OLD_NAMES = {
    "zndraw_joblib": ["", "def old_name(module: str, name: str) -> Any: ..."],
    "zndraw_joblib.client": ["", "def __getattr__(name: str) -> Any: ..."],
}


def text(package: str) -> str:
    """Return the stub of a package, from its table of names."""
    lines = [f'"""Public names; `make generate` writes this file from the table of `{package}`."""\n']
    if package in _OLD_NAMES:
        lines.append("from typing import Any\n")
    modules = import_module(package)._MODULE_OF
    # Sorted as ruff sorts imports: classes before functions.
    for name in sorted(modules, key=lambda name: (modules[name], name[0].islower(), name.lower())):
        begin, what = f"from {package}.{modules[name]} import", f"{name} as {name}"
        line = f"{begin} {what}"
        lines.append(line if len(line) <= _LINE else f"{begin} (\n    {what},\n)")
    lines += ["", "_MODULE_OF: dict[str, str]", "__all__: list[str]", *_OLD_NAMES.get(package, ())]
    return "\n".join(lines) + "\n"
