"""Parameters of a PostgreSQL URL in libpq's spelling, as managed databases hand them out."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
from certificates import Certificate
from databases import on_postgresql
from replica import TIMEOUT
from servers import free_port
from sqlalchemy import make_url, text

from bounds.silent_proxy import SilentProxy
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.asyncpg_options import InvalidDatabaseUrl, connect_arguments, parse_url
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.schema import UnusableDatabase, connected, locate
from zndraw_joblib.server.queue import sql_workers


@pytest.fixture
async def tls_proxy(database_url: str, certificate: Certificate) -> AsyncIterator[SilentProxy]:
    """Run a proxy that accepts only TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    async with SilentProxy(database_url, context).running() as proxy:
        yield proxy


async def use(database: Database) -> None:
    """Use the database as `db upgrade`, requests and the pub/sub connection do."""
    assert await schema.current(database) == schema.newest()
    workers = await database.read(sql_workers.count)
    await database.write(sql_workers.add, owner_id="x")
    assert await database.read(sql_workers.count) == workers + 1
    open_pubsub = await database.pubsub_connection()
    assert open_pubsub is not None
    async with open_pubsub() as connection:
        await connection.send("hello")


@on_postgresql
@pytest.mark.parametrize(
    "query",
    [
        "sslmode=require",
        "ssl=require",
        "sslmode=verify-full&sslrootcert={file}",
        "sslmode=verify-ca&sslrootcert={file}&application_name=web&connect_timeout=7&channel_binding=prefer",
    ],
)
async def test_tls(tls_proxy: SilentProxy, certificate: Certificate, query: str) -> None:
    """Every connection makes a TLS handshake."""
    url = f"{tls_proxy.url}?{query.format(file=certificate.authority)}"
    async with asyncio.timeout(TIMEOUT), connected(url) as database:
        await use(database)
    assert tls_proxy.handshakes >= 4


@on_postgresql
async def test_an_untrusted_certificate_is_refused(tls_proxy: SilentProxy) -> None:
    """The error says that the certificate could not be verified."""
    with pytest.raises(UnusableDatabase, match="certificate verify failed"):
        async with connected(f"{tls_proxy.url}?sslmode=verify-full&sslrootcert=system"):
            pass
    assert tls_proxy.handshakes == 0


@on_postgresql
async def test_every_query_works_with_a_parameter(database_url: str, subtests: pytest.Subtests) -> None:
    """The parameter applies to migrations, requests and pub/sub alike."""
    for query in [
        "application_name=web",
        "connect_timeout=3",
        "options=-c%20search_path%3Dpublic",
        "target_session_attrs=read-write",
        "prepared_statement_cache_size=0",
        "sslmode=prefer&gssencmode=disable&keepalives_idle=30",
    ]:
        with subtests.test(query=query):
            async with asyncio.timeout(TIMEOUT), connected(f"{database_url}&{query}") as database:
                await use(database)


@on_postgresql
async def test_one_of_several_hosts_is_used(database_url: str) -> None:
    """The one that is read-write, as libpq; without one the error says so, and no text has the password."""
    name = make_url(database_url).database
    async with SilentProxy(database_url).running() as proxy:
        user, used = "postgres:se%2Ccret@", f"127.0.0.1:{proxy.port}"
        unused = f"127.0.0.1:{free_port()}"
        url = f"postgresql://{user}{unused},{used}/{name}?target_session_attrs=read-write"
        async with connected(url) as database:
            await use(database)
        assert locate(url).text == f"postgresql://postgres@{unused},{used}/{name}"
        assert parse_url("postgresql://u:a,b@my_db/x").host == "my_db"
        with pytest.raises(UnusableDatabase, match=r"standby.*target_session_attrs") as refused:
            async with connected(f"postgresql://{user}{used},{used}/{name}?target_session_attrs=standby"):
                pass
    assert "cret" not in str(refused.value)


def test_hosts_are_those_of_libpq(subtests: pytest.Subtests) -> None:
    """Also addresses of IPv6, default ports and hosts in parameters; the text has them without a password."""
    for url, hosts, ports in [
        ("u:s%40cret@[::1]:5432,[::1]:5433/x", ["::1", "::1"], [5432, 5433]),
        ("u:s%40cret@[fe80::1%25eth0],b:/x", ["fe80::1%eth0", "b"], [5432, 5432]),
        ("u:s%40cret@%2Fvar%2Frun,db%2D2:7/x", ["/var/run", "db-2"], [5432, 7]),
        ("u:s%40cret@a,b/x?port=7", ["a", "b"], [7, 7]),
        ("/x?host=a,[::1]:7&user=u&password=s%40cret", ["a", "::1"], [5432, 7]),
        ("/x?host=a:7&host=b&user=u&password=s%40cret", ["a", "b"], [7, 5432]),
        ("/x?host=[::1]&port=7&user=u&password=s%40cret", "::1", 7),
        ("u@company:s%40cret@[::1]/x", "::1", None),
        ("u:s/s%40cret@a/x", "a", None),
    ]:
        with subtests.test(url=url):
            arguments = connect_arguments(parse_url(f"postgresql://{url}"), Limits())
            assert (arguments["host"], arguments.get("port"), arguments["database"]) == (hosts, ports, "x")
            assert arguments["password"].endswith("s@cret")
            text = locate(f"postgresql://{url}").text
            assert "cret" not in text
            assert ("[::1]" in text) == ("::1" in hosts)
    for url, named in [
        ("u:se@cret@db1,db2/x", "an @ or a comma too many"),
        ("u:se/cret@db1,db2/x", "an @ or a comma too many"),
        ("u:cret,5/x@db1/x", "an @ or a comma too many"),
        ("u:se@cret@db1/x", "an @ or a comma too many"),
        ("u:cret@::1,::2/x", "Host 1 of the database URL"),
        ("u:cret@db1,,db2/x", "Host 2 of the database URL"),
        ("u:cret@db1,db2:65536/x", "Host 2 of the database URL"),
        ("u:cret@a,b,c/x?port=1,2", "3 hosts and port=1,2"),
        ("u:cret@a,b/x?host=c", "Remove the parameter"),
    ]:
        with subtests.test(url=url):
            for act in (locate, open_database):
                with pytest.raises(InvalidDatabaseUrl, match=named) as refused:
                    act(f"postgresql://{url}")
                assert "cret" not in str(refused.value)


@on_postgresql
async def test_parameters_reach_postgresql(database_url: str) -> None:
    """The session has the name and the options that the URL gives."""
    database = open_database(f"{database_url}&application_name=web&options=-c%20geqo_seed%3D0.5")

    async def shown(tx: Transaction) -> list[str]:
        return [
            (await tx.execute(text(f"SHOW {name}"))).scalar_one()
            for name in ("application_name", "geqo_seed")
        ]

    assert await database.read(shown) == ["web", "0.5"]
    await database.close()


def test_a_wrong_parameter_is_named(subtests: pytest.Subtests) -> None:
    """The error names the parameter and what to write instead, before anything connects."""
    for query, named in [
        ("sslmod=require", "unknown parameter 'sslmod'"),
        ("sslmode=maybe", "sslmode=maybe. Use one of disable, allow"),
        ("sslrootcert=/no/such/file", "sslrootcert=/no/such/file, but there is no such file"),
        ("connect_timeout=soon", "connect_timeout=soon. Use a number"),
        ("channel_binding=require", "channel_binding=require, which the driver cannot provide"),
    ]:
        with subtests.test(query=query, named=named):
            for act in (locate, open_database):
                with pytest.raises(InvalidDatabaseUrl, match=named.replace(".", r"\.")):
                    act(f"postgresql://user:secret@host/name?{query}")
