"""Call a server with a generated client: register a job; submit, read and cancel a task."""

import sys

from queue_client import AuthenticatedClient
from queue_client.api.jobs import register_job
from queue_client.api.tasks import get_task, list_tasks, submit_task, update_task
from queue_client.models import (
    JobRegisterRequest,
    Problem,
    TaskResponse,
    TaskStatus,
    TaskSubmitRequest,
    TaskSubmitRequestPayload,
    TaskUpdateRequest,
)

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token)
job = JobRegisterRequest(category="modifiers", name="Rotate")
register_job.sync("@global", client=client, body=job)
body = TaskSubmitRequest(payload=TaskSubmitRequestPayload.from_dict({"angle": 90}))
task = submit_task.sync("lab", "@global:modifiers:Rotate", client=client, body=body, idempotency_key="one")
assert isinstance(task, TaskResponse)
update_task.sync(task.id, client=client, body=TaskUpdateRequest(status=TaskStatus.CANCELLED))
read = get_task.sync(task.id, client=client, prefer="wait=1")
assert isinstance(read, TaskResponse)
refused = update_task.sync(task.id, client=client, body=TaskUpdateRequest(status=TaskStatus.RUNNING))
assert isinstance(refused, Problem)
page = list_tasks.sync("lab", client=client, status=TaskStatus.CANCELLED)
print(task.queue_position, read.status, read.payload.to_dict(), refused.type_, len(page.items))
