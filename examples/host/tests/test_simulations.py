"""What users see of their simulations, and what the queue gets of them."""

from fastapi.testclient import TestClient

from examples.host.tests.conftest import LogIn
from examples.host.worker import Simulate
from zndraw_joblib.testing import TestQueue, run_job


def test_the_energy_of_a_simulation_is_stored(
    client: TestClient, log_in: LogIn, joblib_queue: TestQueue
) -> None:
    """After the end of its task the queue calls the host's function."""
    ada = log_in("ada")
    joblib_queue.register(Simulate)
    started = client.post("/simulations", json={"steps": 2}, headers=ada)
    assert started.status_code == 202
    [task] = joblib_queue.assert_submitted(Simulate, payload={"steps": 2})
    assert str(task.id) == started.json()["task_id"]
    assert task.room_id == task.created_by
    joblib_queue.work()
    [simulation] = client.get("/simulations", headers=ada).json()
    assert (simulation["energy"], simulation["error"]) == (25.0, None)


def test_a_simulation_that_is_refused_leaves_nothing(
    client: TestClient, log_in: LogIn, joblib_queue: TestQueue
) -> None:
    """The row and the task belong to one transaction."""
    ada = log_in("ada")
    joblib_queue.register(Simulate)
    refused = client.post("/simulations", json={"steps": 5000}, headers=ada)
    assert (refused.status_code, refused.json()["type"]) == (422, "/v1/problems/invalid-payload")
    joblib_queue.refute_submitted(Simulate)
    assert client.get("/simulations", headers=ada).json() == []


def test_users_see_their_own_simulations(client: TestClient, log_in: LogIn, joblib_queue: TestQueue) -> None:
    """A room belongs to a user; only this user and superusers read it."""
    root, ada, bob = log_in("root"), log_in("ada"), log_in("bob")
    joblib_queue.register(Simulate)
    simulation = client.post("/simulations", json={"steps": 2}, headers=ada).json()
    task = f"/v1/joblib/tasks/{simulation['task_id']}"
    assert [client.get(task, headers=each).status_code for each in (root, ada, bob)] == [200, 200, 404]
    assert client.get(task).status_code == 401
    assert client.delete(f"/simulations/{simulation['id']}", headers=bob).status_code == 404
    cancelled = client.delete(f"/simulations/{simulation['id']}", headers=ada)
    assert cancelled.json()["status"] == "cancelled"


def test_a_browser_uses_a_cookie(client: TestClient, log_in: LogIn) -> None:
    """The dashboard's requests are those of the user who has logged in."""
    log_in("root")
    form = {"username": "root@example.com", "password": "password of root"}
    client.base_url = "https://testserver"  # the cookie is for TLS alone
    assert client.post("/auth/cookie/login", data=form).status_code == 204
    me = client.get("/v1/joblib/me").json()
    assert me["is_superuser"] is True
    assert client.get("/queue/").status_code == 200


def test_the_job_alone() -> None:
    """The worker's code needs no host."""
    run = run_job(Simulate, {"simulation": 7, "steps": 3})
    assert (run.result, run.log) == (12.5, ["simulation 7 has the energy 12.5"])
