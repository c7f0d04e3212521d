"""What the section `control` reads: answers of the dashboard, and the metrics."""

from uuid import UUID

TASKS = 1_000_000
_TASK = UUID(int=5_000_000 + TASKS // 2)
_JOB = "@global:modifiers:J7"
PAGES = {
    "overview": "overview",
    "overview of a room": "rooms/room-7/overview",
    "statistics of an hour": "statistics?resolution=60",
    "statistics of a month, of a job": f"statistics?resolution=3600&job={_JOB}&since=2020-01-01T00:00:00Z",
    "tasks": "tasks?limit=50",
    "tasks, failed": "tasks?limit=50&status=failed",
    "tasks, two statuses, room, job": f"tasks?limit=50&status=failed&status=cancelled&room=room-7&job={_JOB}",
    "tasks, rare text in payloads": "tasks?limit=50&text=needle",
    "tasks, counts": "tasks/counts",
    "task": f"tasks/{_TASK}",
    "task, history": f"tasks/{_TASK}/history",
    "task, explanation": f"tasks/{_TASK}/explain",
    "jobs": "jobs?limit=50",
    "rooms": "rooms?limit=50",
    "workers": "workers?limit=50",
    "providers": "providers?limit=50",
    "sweeper": "admin/sweeper",
    "settings": "admin/settings",
    "audit trail": "audit?limit=50",
    "caller": "me",
    "metrics": "metrics",
}
