"""The schema: SQLite's is brought up by itself, PostgreSQL's when somebody asks for it."""

from pathlib import Path

from cli.program import Program, Serving


def test_postgresql_waits_to_be_upgraded(program: Program, empty_postgres_url: str) -> None:
    """A start says which command to run; after it, the first start is like any other."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = empty_postgres_url
    current, upgrade = ["db", "current"], ["db", "upgrade"]
    refusals = [
        ["serve", "--port", "0"],
        ["serve", "--port", "0", "--workers", "2"],
        ["token", "create", "ann"],
    ]
    *refused, missing, upgraded, newest, again = program.each([*refusals, current, upgrade, current, upgrade])
    assert all(one.is_refusal and "run 'zndraw-joblib db upgrade'" in one.err for one in refused)
    assert missing.out.startswith("no schema; the newest is ")
    assert "the schema went from nothing to " in upgraded.out
    assert newest.out.endswith(" (newest)\n")
    assert "was already at" in again.out
    with Serving(program) as server:
        program.ok("jobs", "--url", server.url)
        assert "postgresql://postgres@" in server.stop().err


def test_sqlite_is_upgraded_by_whoever_comes_first(program: Program, tmp_path: Path) -> None:
    """Looking at a database that is not there makes none."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    missing, unlisted, created, current = program.each(
        [["db", "current"], ["token", "list"], ["token", "create", "ann"], ["db", "current"]]
    )
    assert missing.is_refusal
    assert unlisted.is_refusal
    assert f"There is no database {tmp_path / 'some.db'}" in unlisted.err
    assert f"{tmp_path / 'some.db'} is a new one" in created.err
    assert current.out.endswith(" (newest)\n")
