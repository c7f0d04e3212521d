"""Many tasks and one that gets all of their results.

Start a worker, then submit a group in another terminal and watch it:

    zndraw-joblib worker examples/groups.py
    python -m examples.groups 200
"""

import sys

from zndraw_joblib import NewTask, Queue, job

ROOM = "campaign"


@job
def energy(distance: float) -> float:
    """Compute the energy of two atoms at a distance, by a model of Lennard and Jones."""
    if distance <= 0:
        raise ValueError(f"distance: {distance} is not positive")
    return 4 * (distance**-12 - distance**-6)


@job
def minimum(energies: list[float | None], counts: dict[str, int]) -> dict[str, float]:
    """Find the lowest energy. It runs once, after all others; a task that has failed has no energy."""
    known = [value for value in energies if value is not None]
    return {"lowest": min(known), "from": counts["completed"], "failed": counts["failed"]}


def main(count: int) -> None:
    """Submit a group of tasks, show a bar until it has ended, and print what follows from it."""
    payload = {"energies": {"$group": "results"}, "counts": {"$group": "counts"}}
    with Queue(room=ROOM) as queue:
        with queue.group(f"{count} distances", on_end=NewTask("minimum", payload)) as group:
            group.map("energy", [{"distance": 0.01 * number} for number in range(count)])
        ended = group.wait(progress=True)
        print(f"{ended.total} tasks, {ended.counts.failed} failed")
        if ended.on_end_task is not None:
            print(queue.task(ended.on_end_task).result())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
