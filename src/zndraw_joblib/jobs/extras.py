"""The error text for a library that an extra of this package installs."""


def missing_extra(what: str, extra: str, error: ImportError) -> str:
    """Return why `what` does not work after a failed import, and how to install the extra."""
    return (
        f"{what} needs the extra {extra!r}: the module {error.name!r} is not installed. "
        f"Run: pip install 'zndraw-joblib[{extra}]', or pip install '.[{extra}]' in a clone"
    )
