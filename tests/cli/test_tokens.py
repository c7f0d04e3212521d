"""Create, list, change and revoke tokens."""

from pathlib import Path

from waiting import wait_until

from cli.conftest import Stack
from cli.program import Program


def test_a_token_works_until_it_is_revoked(stack: Stack) -> None:
    """`token create` prints only the token, and the database has only its hash."""
    ann, boss, listed, revoked = stack.program.run_all(
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
    assert token.encode() not in b"".join(file.read_bytes() for file in stack.program.folder.glob("*.db*"))
    head, *lines = [tuple(line.split("\t")[:2]) for line in listed.out.splitlines()]
    assert head == ("name", "superuser")
    # Other tests of the same server may have created tokens too.
    assert {("ann", "no"), ("boss", "yes"), ("operator", "yes")} <= set(lines)
    assert lines == sorted(lines)
    assert revoked.code == 0
    allowed, refused = stack.program.run_all(
        [[f"ZNDRAW_JOBLIB_TOKEN={one}", "jobs"] for one in (token, boss.out.strip())]
    )
    assert allowed.code == 0
    assert "rejected the token from ZNDRAW_JOBLIB_TOKEN" in refused.err


def test_the_rights_of_a_token_change(program: Program) -> None:
    """What no option names stays, and '*' and never take a limit away."""
    changes = (
        ["--role", "operator", "--rooms", "lab,den", "--jobs", "lab:*", "--expires", "90d"],
        ["--role", "viewer"],
        ["--rooms", "*", "--expires", "never"],
    )
    create, *runs = program.run_all(
        [
            ["token", "create", "eve", "--create-database", "--superuser"],
            *(
                command
                for each in changes
                for command in (["token", "update", "eve", *each], ["token", "list"])
            ),
            ["token", "update", "bob", "--role", "viewer"],
            ["token", "update", "eve"],
        ]
    )
    assert create.code == 0
    shown = [run.out.splitlines()[1].split("\t") for run in runs[1:6:2]]
    assert [line[1:5] for line in shown] == [
        ["no", "operator", "den,lab", "lab:*"],
        ["no", "viewer", "den,lab", "lab:*"],
        ["no", "viewer", "all", "lab:*"],
    ]
    assert [bool(line[6]) for line in shown] == [True, True, False]
    assert runs[0].out == "Changed the token 'eve'; running servers apply it within 5 s.\n"
    assert [run.code for run in runs[6:]] == [1, 2]
    assert "no token 'bob'" in runs[6].err
    assert "pass --role" in runs[7].err
    assert [line[8] for line in shown] == ["", "", ""]
    program.ok("token", "update", "eve", "--expires", "1s")
    wait_until(lambda: program.ok("token", "list").splitlines()[1].split("\t")[8] == "expired")


def test_an_invalid_token_name_is_an_error(program: Program) -> None:
    """The name is taken, reserved, empty or unknown."""
    names = ("ann", "ann", "admin", "oidc:ann", " ")
    _, taken, reserved, of_provider, empty, unknown = program.run_all(
        [*(["token", "create", name, "--create-database"] for name in names), ["token", "revoke", "bob"]]
    )
    assert [run.code for run in (taken, reserved, of_provider, empty, unknown)] == [1, 2, 2, 2, 1]
    assert "already" in taken.err
    assert "ZNDRAW_JOBLIB_ADMIN_TOKEN" in reserved.err
    assert "identity provider" in of_provider.err
    assert "1 to 128 printable characters" in empty.err
    assert "no token 'bob'" in unknown.err


def test_a_token_is_created_in_no_new_database_by_mistake(program: Program, tmp_path: Path) -> None:
    """In another folder than the server's the error names the file and both remedies; nothing is created."""
    refused = program.run("token", "create", "ann")
    assert refused.is_error_line
    file = tmp_path / "zndraw-joblib.db"
    for part in (f"no database {file}", "--database-url", "ZNDRAW_JOBLIB_DATABASE_URL", "--create-database"):
        assert part in refused.err
    assert not file.exists()
    asked, again, named = program.run_all(
        [
            ["token", "create", "ann", "--create-database"],
            ["token", "create", "bob"],
            ["token", "create", "ann", "--database-url", "sqlite:///other.db", "--create-database"],
        ]
    )
    wrong = program.run("token", "create", "ann", "--database-url", "sqlite:///wrong.db")
    assert f"There is no database {tmp_path / 'wrong.db'}: the file does not exist. Run the" in wrong.err
    assert [run.out[:3] for run in (asked, again, named, wrong)] == ["zj_", "zj_", "zj_", ""]
    assert f"Created the database {file}" in asked.err
    assert again.err == ""
    assert f"Created the database {tmp_path / 'other.db'}" in named.err
