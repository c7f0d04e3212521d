"""The clock of a process, shifted while the process runs by libfaketime."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def find_library() -> Path | None:
    """Return the path of libfaketime, or None if it is not installed."""
    spec = find_spec("libfaketime")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return library if library.exists() else None


class ShiftedClock:
    """The wall clock of all processes with this environment. Their monotonic clocks are not changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.shift(0)
        file.chmod(0o644)

    def shift(self, seconds: int) -> None:
        """Set the difference to the clock of the machine."""
        self._file.write_text(f"{seconds:+}", encoding="ascii")

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that apply the clock to a process and its children."""
        library = find_library()
        assert library is not None, "libfaketime is not installed: see `make chaos`"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
