"""Scopes: what a token or a user of a host may do, and the roles that name sets of them."""

from collections.abc import Iterable
from enum import Flag, StrEnum, auto


class Scope(Flag):
    """A right to use operations. Each operation has the scopes of which a caller needs one."""

    # Read tasks, jobs, logs, results and events of its rooms.
    READ = auto()
    # Submit tasks, and cancel and retry its own; write schedules, groups and webhooks of its rooms.
    SUBMIT = auto()
    # Register and serve jobs and providers of its rooms.
    WORK = auto()
    # Act on all tasks, jobs and workers of its rooms.
    OPERATE = auto()
    # Change the server: the sweeper, and what its settings are.
    ADMIN = auto()
    # Read the metrics.
    METRICS = auto()

    @property
    def names(self) -> list[str]:
        """The names of the scopes, as in requests and answers."""
        return [str(scope.name).lower() for scope in self]

    def __str__(self) -> str:
        """Return the names, as in an error message."""
        return " or ".join(self.names)


ANY_SCOPE = ~Scope(0)


class AccessRole(StrEnum):
    """A name for the scopes of a kind of user."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


SCOPES_OF = {
    AccessRole.VIEWER: Scope.READ,
    AccessRole.SUBMITTER: Scope.READ | Scope.SUBMIT,
    # Jobs submit tasks too.
    AccessRole.WORKER: Scope.READ | Scope.SUBMIT | Scope.WORK,
    AccessRole.OPERATOR: Scope.READ | Scope.SUBMIT | Scope.WORK | Scope.OPERATE | Scope.METRICS,
    AccessRole.ADMIN: ANY_SCOPE,
}
# The scopes of a caller for whom neither roles nor scopes are set.
DEFAULT_SCOPES = SCOPES_OF[AccessRole.WORKER]


def scopes_of(names: Iterable[str]) -> Scope:
    """Return the scopes that names of roles and of scopes stand for. Raises ValueError for another name."""
    scopes = Scope(0)
    by_name = {name: Scope[name.upper()] for name in ANY_SCOPE.names} | {
        str(role): role_scopes for role, role_scopes in SCOPES_OF.items()
    }
    for name in names:
        if name not in by_name:
            raise ValueError(f"{name[:100]!r} is neither a role nor a scope; they are {', '.join(by_name)}")
        scopes |= by_name[name]
    # Who changes the server may do all else.
    return ANY_SCOPE if Scope.ADMIN in scopes else scopes


def roles_with(scopes: Scope) -> list[AccessRole]:
    """Return the roles that have one of these scopes, the one with the fewest first."""
    return [role for role, role_scopes in SCOPES_OF.items() if role_scopes & scopes]
