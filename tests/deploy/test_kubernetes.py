"""The manifests of deploy/kubernetes are valid, and name settings, commands and paths that the code knows.

`make release-check` sets `KUBERNETES_MANIFESTS` to a folder with what the Helm chart renders.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from deploy.known import OTHER_VARIABLES, SETTINGS, parse, paths
from zndraw_joblib.cli.server.processes import STOP_SECONDS
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.operations import GET_JOB_DEMAND, PREFIX
from zndraw_joblib.wire.operators import Demand

FOLDER = Path(os.environ.get("KUBERNETES_MANIFESTS", Path(__file__).parents[2] / "deploy" / "kubernetes"))
Manifest = dict[str, Any]


def read(name: str) -> list[Manifest]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
ALL = [one for name in FILES for one in read(name)]
PROGRAMS = {one["metadata"]["name"]: one for one in ALL if one["kind"] in {"Deployment", "Job"}}
SECRETS = {one["metadata"]["name"]: one["stringData"] for one in ALL if one["kind"] == "Secret"}


def container(name: str) -> Manifest:
    """Return the only container of a program."""
    [found] = PROGRAMS[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def fields(required: int, **properties: Manifest) -> Manifest:
    """Return the schema of an object with these properties, the first ones `required`, and no others."""
    names = list(properties)[:required]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


# What the manifests use of KEDA's custom resources (keda.sh/v1alpha1) and of its metrics-api scaler.
NAMED = fields(1, name=TEXT)
SCALER = {
    **dict.fromkeys(("targetValue", "url", "valueLocation"), TEXT),
    "authMode": {"enum": ["apiKey", "basic", "tls", "bearer"]},
    "activationTargetValue": TEXT,
}
TRIGGER = fields(2, type={"const": "metrics-api"}, metadata=fields(3, **SCALER), authenticationRef=NAMED)
REFERENCE = {"type": "array", "items": fields(3, parameter={"const": "token"}, name=TEXT, key=TEXT)}
COUNTS = dict.fromkeys(("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"), NUMBER)
SPECS = {
    "ScaledObject": fields(
        2, scaleTargetRef=NAMED, triggers={"type": "array", "items": TRIGGER, "minItems": 1}, **COUNTS
    ),
    "TriggerAuthentication": fields(1, secretTargetRef=REFERENCE),
}


def validate(manifest: Manifest) -> None:
    """Check a manifest against its schema, Kubernetes' or KEDA's. Raises the error of either validator."""
    if manifest["apiVersion"] != "keda.sh/v1alpha1":
        kubernetes_validate.validate(manifest, "1.34", strict=True)
        return
    spec = SPECS[manifest["kind"]]
    jsonschema_rs.validate(fields(4, apiVersion=TEXT, kind=TEXT, metadata=NAMED, spec=spec), manifest)


def test_the_manifests_follow_the_schemas(subtests: pytest.Subtests) -> None:
    """Kubernetes would refuse an unknown or misspelt field."""
    for name in FILES:
        with subtests.test(name):
            for manifest in read(name):
                validate(manifest)
                with pytest.raises((kubernetes_validate.ValidationError, jsonschema_rs.ValidationError)):
                    validate({**manifest, "sepc": {}})


def test_keda_reads_the_demand_of_the_workers_that_it_scales() -> None:
    """It asks an operation that exists, for a field that its answer has, with the token of its secret."""
    [scaled] = [one for one in ALL if one["kind"] == "ScaledObject"]
    [authentication] = [one for one in ALL if one["kind"] == "TriggerAuthentication"]
    [trigger] = scaled["spec"]["triggers"]
    asked = trigger["metadata"]
    path = urlsplit(asked["url"]).path
    assert GET_JOB_DEMAND.path(name="@global:jobs:train") == quote(path.removeprefix(PREFIX))
    assert asked["valueLocation"] in Demand.model_fields
    worker = container(scaled["spec"]["scaleTargetRef"]["name"])
    assert asked["targetValue"] == str(parse(worker["args"])["concurrency"])
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    [reference] = authentication["spec"]["secretTargetRef"]
    assert reference["key"] in SECRETS[reference["name"]]


def test_each_program_has_a_command_and_known_variables(subtests: pytest.Subtests) -> None:
    """The entry point of the image has the command, and the program knows each variable."""
    for name in PROGRAMS:
        with subtests.test(name):
            program = container(name)
            parse(program["args"])
            variables = {variable["name"] for variable in program.get("env", [])}
            for source in program.get("envFrom", []):
                variables |= set(SECRETS[source["secretRef"]["name"]])
            assert variables
            assert variables <= SETTINGS | OTHER_VARIABLES


def test_no_program_has_more_rights_than_it_needs(subtests: pytest.Subtests) -> None:
    """Programs run as another user than root, without the token of a service account."""
    for name, program in PROGRAMS.items():
        pod = program["spec"]["template"]["spec"]
        with subtests.test(name):
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] == 10001
            assert container(name)["securityContext"]["allowPrivilegeEscalation"] is False
            assert container(name)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_probes_ask_paths_that_exist() -> None:
    """Liveness asks only the process, readiness also its database; the first start has a minute."""
    server = container("joblib-server")
    probes = {name: server[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    asked = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert asked == {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    assert set(asked.values()) <= paths()
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"http"}
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 60


def test_ports_and_names_match() -> None:
    """The Service, the Ingress and the workers reach the port that the server opens."""
    server = container("joblib-server")
    port = parse(server["args"])["port"]
    assert server["ports"] == [{"name": "http", "containerPort": port}]
    [service] = [one for one in ALL if one["kind"] == "Service"]
    labels = PROGRAMS["joblib-server"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert service["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
    url = f"http://{service['metadata']['name']}:{port}"
    for name in ("joblib-worker", "joblib-gpu-worker"):
        assert {"name": "ZNDRAW_JOBLIB_URL", "value": url} in container(name)["env"]
    [ingress] = read("ingress.yaml")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    [policy] = read("network-policy.yaml")
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    [_, workers] = policy["spec"]["ingress"][0]["from"]
    [expression] = workers["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {name for name in PROGRAMS if name.endswith("worker")}


def test_a_server_has_time_to_stop() -> None:
    """Kubernetes counts the pause before the stop too."""
    pod = PROGRAMS["joblib-server"]["spec"]["template"]["spec"]
    [_, pause] = container("joblib-server")["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS + int(pause)


def test_a_long_poll_passes_the_ingress() -> None:
    """So do the largest results."""
    [ingress] = read("ingress.yaml")
    given = {name.rpartition("/")[2]: text for name, text in ingress["metadata"]["annotations"].items()}
    settings = ServerSettings()
    assert int(given["proxy-read-timeout"]) > settings.long_poll_max_wait_seconds
    assert int(given["proxy-body-size"].removesuffix("m")) * 2**20 >= settings.max_task_result_bytes
    assert given["proxy-buffering"] == "off"


def test_no_secret_has_a_value() -> None:
    """The example leaves each secret empty."""
    assert set(SECRETS) == {"joblib-server", "joblib-worker", "joblib-keda"}
    assert not any(value for one in SECRETS.values() for value in one.values())


def test_the_migration_runs_with_the_settings_of_the_servers() -> None:
    """Those that are no secrets too; without them it may look for another database."""
    of_proxies = {"FORWARDED_ALLOW_IPS", "ZNDRAW_JOBLIB_SOCKETIO_TRANSPORTS"}
    server, migration = container("joblib-server"), container("joblib-migrate")
    settings = [one for one in server["env"] if one["name"] not in of_proxies]
    assert migration.get("env", []) == settings
    assert bool(settings) == ("KUBERNETES_MANIFESTS" in os.environ)
    assert migration["envFrom"] == server["envFrom"]


def test_a_secret_changes_before_the_servers_that_read_it() -> None:
    """A hook of Helm does nothing in an event that it does not name, such as a rollback."""
    hooks = {
        one["metadata"]["name"]: one["metadata"]["annotations"]["helm.sh/hook"]
        for one in ALL
        if one["kind"] == "Secret" and "annotations" in one["metadata"]
    }
    events = "pre-install,pre-upgrade,pre-rollback"
    assert hooks == ({"joblib-server": events} if "KUBERNETES_MANIFESTS" in os.environ else {})


def test_a_worker_with_a_gpu_runs_one_task_at_a_time() -> None:
    """It claims none ahead, so that another GPU takes the next task."""
    one = container("joblib-gpu-worker")
    options = parse(one["args"])
    assert (options["concurrency"], options["prefetch"]) == (1, 0)
    assert one["resources"]["limits"]["nvidia.com/gpu"] == 1
