"""Run the demo: python -m examples.demo."""

import argparse
import logging
import signal
import sys

from examples.demo.jobs import stdlib_modules
from examples.demo.output import Output
from examples.demo.processes import DemoFailed, DemoProcesses
from examples.demo.scenario import Scenario
from zndraw_joblib import ProblemException, connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.rest import TaskRest


def main() -> int:
    """Run a server and four workers on real tasks; return the exit code.

    Each task counts one module of the Python standard library. The demo kills one worker in the middle.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=main.__doc__)
    parser.add_argument("--limit", type=int, help="count only so many modules, at least 100")
    modules, output = stdlib_modules(parser.parse_args().limit), Output()
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    output.print_plan(len(modules))
    try:
        with DemoProcesses() as processes, connect(processes.url, processes.token) as api:
            summary = Scenario(processes, JobClient(TaskRest(api)), modules, output).run()
    except KeyboardInterrupt:
        return 130
    except (DemoFailed, ProblemException, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    output.print_summary(summary)
    if problems := summary.problems():
        print("Error: The demo found a problem: " + "; ".join(problems), file=sys.stderr)
        return 1
    output.print_success()
    return 0


if __name__ == "__main__":
    sys.exit(main())
