"""Tokens for others: made, listed, revoked."""

from cli.conftest import Place
from cli.program import Program


def test_a_token_lives_until_it_is_revoked(place: Place) -> None:
    """`token create` prints the token alone; its hash is all that is stored."""
    ann, boss, listed, revoked = place.program.each(
        [
            ["token", "create", "ann"],
            ["token", "create", "boss", "--superuser"],
            ["token", "list"],
            ["token", "revoke", "boss"],
        ]
    )
    token = ann.out.removesuffix("\n")
    assert token.startswith("zj_")
    assert "\n" not in token
    assert token.encode() not in b"".join(file.read_bytes() for file in place.program.folder.glob("*.db*"))
    head, *lines = [tuple(line.split("\t")[:2]) for line in listed.out.splitlines()]
    assert head == ("name", "superuser")
    # Other tests of the same server may have made some too.
    assert {("ann", "no"), ("boss", "yes"), ("first-start", "yes")} <= set(lines)
    assert lines == sorted(lines)
    assert revoked.code == 0
    allowed, refused = place.program.each(
        [[f"ZNDRAW_JOBLIB_TOKEN={one}", "jobs"] for one in (token, boss.out.strip())]
    )
    assert allowed.code == 0
    assert "refused the token from ZNDRAW_JOBLIB_TOKEN" in refused.err


def test_a_token_has_a_name_of_its_own(program: Program) -> None:
    """A name that is taken, reserved, empty or unknown is refused."""
    names = ("ann", "ann", "admin", " ")
    _, taken, reserved, empty, unknown = program.each(
        [*(["token", "create", name] for name in names), ["token", "revoke", "bob"]]
    )
    assert (taken.code, reserved.code, empty.code, unknown.code) == (1, 2, 2, 1)
    assert "already" in taken.err
    assert "ZNDRAW_JOBLIB_ADMIN_TOKEN" in reserved.err
    assert "1 to 128 printable characters" in empty.err
    assert "no token 'bob'" in unknown.err
