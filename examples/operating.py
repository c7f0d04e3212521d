"""A slider of which the last value runs, a job that gets an argument while old tasks wait, and a pause.

It needs a server and no worker: the tasks wait, and are cancelled at the end.

    zndraw-joblib serve
    python examples/operating.py
"""

from datetime import UTC, datetime, timedelta

from zndraw_joblib import Queue

ROOM = "operating"
JOB = f"{ROOM}:modifiers:scale"
OLD = {"type": "object", "properties": {"width": {"type": "integer"}}}
# It accepts all that the old schema accepts, so workers of both serve the job at once (blue/green).
NEW = {"type": "object", "properties": {"width": {"type": "integer"}, "depth": {"type": "integer"}}}


def move_slider(queue: Queue) -> None:
    """Submit a task for each position of a slider; one task with the last position is left."""
    key = {"key": "slider", "until": "started"}
    debounce = {"seconds": 0.2, "max_seconds": 2}
    tasks = [queue.submit(JOB, {"width": width}, unique=key, debounce=debounce) for width in range(40)]
    [task] = set(tasks)
    duplicates = sum(handle.duplicate for handle in tasks)
    print(f"1 task for 40 submits, {duplicates} of them duplicates: {queue.task(task).refresh().payload}")


def add_argument(queue: Queue) -> None:
    """Register a schema that has grown, list the versions, and move the old task to the new one."""
    queue.operator.register_job(JOB, NEW)
    queue.submit(JOB, {"width": 1, "depth": 2}).cancel()
    for version in queue.operator.job(JOB).versions:
        print(f"version {version.version}: {version.pending + version.scheduled} tasks wait")
    print(f"{queue.operator.retarget(JOB).affected} task moved to the current version")


def pause(queue: Queue) -> None:
    """Pause the room for maintenance; its tasks say why they wait."""
    queue.operator.pause_room(ROOM, until=datetime.now(UTC) + timedelta(hours=1))
    task = queue.submit(JOB, {"width": 3})
    print(task.explain().reasons[0].detail)
    queue.operator.resume_room(ROOM)
    task.cancel()


def main() -> None:
    """Run the three parts, and clean up."""
    with Queue(room=ROOM) as queue:
        queue.operator.register_job(JOB, OLD)
        move_slider(queue)
        add_argument(queue)
        pause(queue)
        # The same key: this is the task of the slider.
        queue.submit(JOB, {}, unique={"key": "slider"}).cancel()
        queue.operator.forget_job(JOB)


if __name__ == "__main__":
    main()
