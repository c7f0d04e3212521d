"""Tasks that wait for others, for `zndraw-joblib worker examples/steps.py`.

zndraw-joblib submit survey sites=4 --wait
python examples/steps.py

The first submits the steps from a job, which waits for none of them. The second submits a fan and a chain
from a program, with one request.
"""

from zndraw_joblib import NewTask, Queue, TaskContext, job


@job
def measure(site: int) -> dict[str, float]:
    """Measure one site."""
    return {"site": site, "height": 10.0 + site}


@job
def highest(heights: list[float], margin: float = 0.0) -> float:
    """Return the highest of several heights, with a margin."""
    return max(heights) + margin


@job
def survey(task: TaskContext, sites: int = 3) -> str:
    """Submit a measurement of each site, and one step that waits for all of them; return its id."""
    measured = [task.submit("measure", {"site": site}) for site in range(sites)]
    return str(task.submit("highest", {"heights": [one.output("/height") for one in measured]}))


def main() -> None:
    """Submit a fan of three, and two steps after it."""
    fan = [NewTask(measure.task(site)) for site in range(3)]
    first = NewTask("highest", {"heights": [one.output("/height") for one in fan]})
    second = NewTask("highest", {"heights": [first.output()], "margin": 2.5})
    with Queue() as queue:
        *_, last = queue.submit_many([*fan, first, second], atomic=True)
        print(last.result(timeout=60))


if __name__ == "__main__":
    main()
