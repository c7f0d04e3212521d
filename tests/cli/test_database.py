"""The schema: commands upgrade SQLite automatically, PostgreSQL only by `db upgrade`."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from cli.program import Program, RunningServer


def test_postgresql_is_upgraded_on_request(program: Program, empty_postgres_url: str) -> None:
    """Other commands name `db upgrade`; after it, they work."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = empty_postgres_url
    current, upgrade = ["db", "current"], ["db", "upgrade"]
    failing = [
        ["serve", "--port", "0"],
        ["serve", "--port", "0", "--workers", "2"],
        ["token", "create", "ann"],
    ]
    *failed, missing, upgraded, newest, again = program.run_all(
        [*failing, current, upgrade, current, upgrade]
    )
    assert all(one.is_error_line and "Run 'zndraw-joblib db upgrade'" in one.err for one in failed)
    assert missing.out.startswith("no schema; the newest is ")
    assert "the schema went from nothing to " in upgraded.out
    assert newest.out.endswith(" (newest)\n")
    assert "was already at" in again.out
    with RunningServer(program) as server:
        program.ok("jobs", "--url", server.url)
        assert "postgresql://postgres@" in server.stop().err


def test_sqlite_is_upgraded_automatically(program: Program, tmp_path: Path) -> None:
    """Commands that only read do not create a missing file."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    missing, unlisted, created, current = program.run_all(
        [["db", "current"], ["token", "list"], ["db", "upgrade"], ["db", "current"]]
    )
    assert missing.is_error_line
    assert unlisted.is_error_line
    assert f"There is no database {tmp_path / 'some.db'}" in unlisted.err
    assert f"{tmp_path / 'some.db'}, because the file did not exist" in created.err
    assert current.out.endswith(" (newest)\n")


def test_no_new_database_is_upgraded_by_mistake(program: Program, tmp_path: Path) -> None:
    """In another folder than the server's the error names the file and the remedies; nothing is created."""
    refused = program.run("db", "upgrade")
    assert refused.is_error_line
    file = tmp_path / "zndraw-joblib.db"
    for part in (f"no database {file}", "--database-url", "ZNDRAW_JOBLIB_DATABASE_URL", "--create-database"):
        assert part in refused.err
    assert not list(tmp_path.glob("*.db*"))
    asked, again, named = program.run_all(
        [
            ["db", "upgrade", "--create-database"],
            ["db", "upgrade"],
            ["db", "upgrade", "--database-url", "sqlite:///other.db"],
        ]
    )
    assert "the schema went from nothing to " in asked.out
    assert f"Created the database {file}" in asked.err
    assert "the schema was already at " in again.out
    assert again.err == ""
    assert f"Created the database {tmp_path / 'other.db'}" in named.err


def test_wrong_counts_are_shown_and_corrected(program: Program, tmp_path: Path) -> None:
    """Without `--repair` they are an error that names the command."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    program.ok("db", "upgrade")
    with closing(sqlite3.connect(tmp_path / "some.db")) as connection, connection:
        connection.execute("INSERT INTO joblib_room_count VALUES ('lab', '" + 32 * "0" + "', 0, 3, 1, 0, 0)")
    check, repair = ["db", "check-counts"], ["db", "check-counts", "--repair"]
    wrong, repaired, right = program.run_all([check, repair, check])
    assert wrong.code == 1
    assert "db check-counts --repair" in wrong.err
    assert "room_id=lab" in wrong.out
    assert "total=-3, pending=-1" in wrong.out
    assert repaired.out.endswith("the counts are corrected\n")
    assert right.out.endswith("all counts are right\n")


def test_a_schema_of_a_newer_release_is_an_error(program: Program, tmp_path: Path) -> None:
    """Each command names the version, and the release that upgraded the database; none changes it."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    program.ok("db", "upgrade")
    with closing(sqlite3.connect(tmp_path / "some.db")) as connection, connection:
        connection.execute("UPDATE joblib_alembic_version SET version_num = '0999'")
        connection.execute("UPDATE joblib_switch SET value = '9.1.0' WHERE name = 'upgraded_by'")
    commands = [["serve", "--port", "0"], ["db", "upgrade"], ["db", "current"], ["token", "create", "ann"]]
    for done in program.run_all(commands):
        assert done.code == 1
        assert done.is_error_line
        assert "version '0999'" in done.err
        assert "zndraw-joblib 9.1.0" in done.err
        assert str(tmp_path / "some.db") in done.err


def test_an_sqlite_file_has_one_server(program: Program, tmp_path: Path) -> None:
    """A second `serve` names the file, the first server and what to do. A crash leaves no lock."""
    (tmp_path / "link.db").symlink_to(tmp_path / "zndraw-joblib.db")
    with RunningServer(program) as first:
        serve = ["serve", "--port", "0"]
        *refused, created = program.run_all(
            [serve, [*serve, "--database-url", "sqlite:///link.db"], ["token", "create", "ann"]]
        )
        for done in refused:
            assert (done.code, done.is_error_line) == (1, True), done
            assert f"{tmp_path / 'zndraw-joblib.db'} is in use" in done.err
            assert f"process {first.process.pid}, {first.url}" in done.err
            assert "postgresql://" in done.err
        assert created.code == 0
        first.stop(signal.SIGKILL)
    with RunningServer(program) as second:
        assert second.stop().code == 0


def test_a_new_database_belongs_to_its_owner(program: Program, tmp_path: Path) -> None:
    """Payloads, results and keys are not readable by others, also those in the files beside it."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    with RunningServer(program):
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("some.db*")}
    assert modes.pop("some.db-server", None) in {None, 0o644}
    assert {"some.db", "some.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


def test_an_existing_database_keeps_its_mode(program: Program, tmp_path: Path) -> None:
    """An operator may have granted others the right to read it."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = "sqlite:///some.db"
    program.ok("db", "upgrade")
    (tmp_path / "some.db").chmod(0o640)
    program.ok("token", "create", "ann")
    assert (tmp_path / "some.db").stat().st_mode & 0o777 == 0o640
