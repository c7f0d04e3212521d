"""Tokens for others: made, listed, revoked."""

from cli.program import Program, Serving


def test_a_token_lives_until_it_is_revoked(program: Program) -> None:
    """`token create` prints the token alone; its hash is all that is stored."""
    token = program.ok("token", "create", "ann").removesuffix("\n")
    assert token.startswith("zj_")
    assert "\n" not in token
    assert token.encode() not in (program.folder / "zndraw-joblib.db").read_bytes()
    boss = program.ok("token", "create", "boss", "--superuser").strip()
    listed = [line.split("\t")[:2] for line in program.ok("token", "list").splitlines()]
    assert listed == [["name", "superuser"], ["ann", "no"], ["boss", "yes"]]
    program.ok("token", "revoke", "boss")
    with Serving(program) as server:
        assert "first start" not in server.said
        program.ok("jobs", "--url", server.url, TOKEN=token)
        assert "refused the token from ZNDRAW_JOBLIB_TOKEN" in program.refused(
            "jobs", "--url", server.url, TOKEN=boss
        )
    assert not program.credentials.exists()


def test_a_token_has_a_name_of_its_own(program: Program) -> None:
    """A name that is taken, reserved, empty or unknown is refused."""
    program.ok("token", "create", "ann")
    names = ("ann", "admin", " ")
    taken, reserved, empty, unknown = program.each(
        [*(["token", "create", name] for name in names), ["token", "revoke", "bob"]]
    )
    assert (taken.code, reserved.code, empty.code, unknown.code) == (1, 2, 2, 1)
    assert "already" in taken.err
    assert "ZNDRAW_JOBLIB_ADMIN_TOKEN" in reserved.err
    assert "1 to 128 printable characters" in empty.err
    assert "no token 'bob'" in unknown.err
