"""Tokens for others: made, listed, revoked."""

from cli.program import Program, Serving


def test_a_token_lives_until_it_is_revoked(program: Program) -> None:
    """`token create` prints the token alone; its hash is all that is stored."""
    ann, boss, listed, revoked = program.each(
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
    assert token.encode() not in (program.folder / "zndraw-joblib.db").read_bytes()
    lines = [line.split("\t")[:2] for line in listed.out.splitlines()]
    assert lines == [["name", "superuser"], ["ann", "no"], ["boss", "yes"]]
    assert revoked.code == 0
    with Serving(program) as server:
        jobs = ["jobs", "--url", server.url]
        tokens = (token, boss.out.strip())
        allowed, refused = program.each([[f"ZNDRAW_JOBLIB_TOKEN={one}", *jobs] for one in tokens])
        assert allowed.code == 0
        assert "refused the token from ZNDRAW_JOBLIB_TOKEN" in refused.err
        assert "none is kept here; 'zndraw-joblib token create NAME' makes one" in server.stop().err
    assert not program.credentials.exists()


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
