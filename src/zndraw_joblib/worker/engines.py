"""Executors of other engines, for `worker --executor dask` and the like.

Each function connects to the cluster that the engine's own variables name, or starts one on this machine. The
engines are optional: a function imports its own when it is called.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from zndraw_joblib.client.retry import describe

log = logging.getLogger(__name__)

# The function of an engine, and the module that it imports.
ENGINES = {"dask": "distributed", "ray": "ray", "parsl": "parsl", "executorlib": "executorlib"}


def engine_function(name: str) -> str:
    """Return the function of an engine as MODULE:FUNCTION. Raises LookupError if it is not installed."""
    if find_spec(ENGINES[name]) is None:
        raise LookupError(
            f"{name} is not installed here. Install it with pip install 'zndraw-joblib[{name}]'"
        )
    return f"{__name__}:{name}"


class EngineExecutor(Executor):
    """Has a future for each call of an engine. Thread-safe.

    It ends the futures of calls that have not ended when it is shut down, and cancels the call of a future
    that is cancelled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Future[Any]] | None = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit a call. Raises RuntimeError once this object is shut down, or the engine is lost."""
        future: Future[Any] = Future()
        with self._lock:
            if self._open is None:
                raise RuntimeError("The executor is shut down")
            self._open.add(future)
        try:
            cancel = self._send(future, fn, *args, **kwargs)
        except BaseException:
            self._take(future)
            raise

        def cancel_call(ended: "Future[Any]") -> None:
            if ended.cancelled() and self._take(ended):
                ended.set_running_or_notify_cancel()
                cancel()

        future.add_done_callback(cancel_call)
        return future

    @abstractmethod
    def _send(
        self, future: "Future[Any]", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Callable[[], object]:
        """Send a call to the engine, which ends `future` by `_end`. Return what cancels the call."""

    @abstractmethod
    def _close(self) -> None:
        """Leave the engine, and end what was started on this machine."""

    def _take(self, future: "Future[Any]") -> bool:
        """Return whether a future had not ended, and forget it."""
        with self._lock:
            if self._open is None or future not in self._open:
                return False
            self._open.remove(future)
            return True

    def _end(self, future: "Future[Any]", result: Any = None, error: BaseException | None = None) -> None:
        """End a future, unless it has ended or was cancelled."""
        if self._take(future):
            _settle(future, result, error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the engine at once; calls that have not ended are lost."""
        with self._lock:
            futures, self._open = self._open, None
        if futures is None:
            return
        for future in futures:
            _settle(future, None, BrokenExecutor("the executor was shut down before the call ended"))
        self._close()


def _settle(future: "Future[Any]", result: Any, error: BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_DASK_CONFIG = {
    # The policy of a job decides whether a call whose process ended runs again,
    "distributed.scheduler.allowed-failures": 0,
    # and no call waits in the process of another one, with which it would be lost.
    "distributed.scheduler.worker-saturation": 1.0,
    # After this time the cluster removes a process that was killed and has not started again, or was killed
    # again. The calls would wait for ever once all are removed.
    "distributed.deploy.lost-worker-timeout": "365 days",
}


def dask() -> Executor:
    """Return an executor on the scheduler of `DASK_SCHEDULER_ADDRESS`, or on a `LocalCluster`."""
    import dask as engine  # noqa: PLC0415 - it is optional
    from distributed import Client, LocalCluster  # noqa: PLC0415 - it is optional

    if engine.config.get("scheduler-address", None):
        return DaskExecutor(Client(set_as_default=False))
    engine.config.set(_DASK_CONFIG)
    # A call captures what it prints in its whole process, so each process runs one at a time.
    cluster = LocalCluster(threads_per_worker=1, dashboard_address=None)
    return DaskExecutor(Client(cluster, set_as_default=False), cluster)


class DaskExecutor(EngineExecutor):
    """Calls functions on a Dask cluster; `options` are those of `Client.submit`, such as `resources`.

    Client.get_executor() is not used: if a process is killed after a call and before its result was fetched,
    Dask runs the call again, and if that fails, the future may never end; with Dask 2026.8 one of 16 did not.
    The client, and the cluster if it is given, are closed with this object.
    """

    def __init__(self, client: Any, cluster: Any = None, **options: Any) -> None:
        super().__init__()
        self._client, self._cluster = client, cluster
        self._options = {"pure": False, **options}
        self._warn_of_repeats()

    def _warn_of_repeats(self) -> None:
        failures = self._client.run_on_scheduler(_allowed_failures)
        if failures:
            log.warning(
                "Dask repeats a call up to %s times whose process ends, whatever the policy of its job says: "
                "set distributed.scheduler.allowed-failures=0 where the scheduler runs",
                failures,
            )

    def _send(
        self, future: "Future[Any]", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Callable[[], object]:
        client = self._client
        if client.status != "running":
            raise RuntimeError(f"the client of Dask is {client.status}")
        loop = client.loop.asyncio_loop
        call = client.submit(fn, *args, **kwargs, **self._options)

        async def follow() -> None:
            try:
                self._end(future, await client.gather(call, asynchronous=True))
            except (CancelledError, asyncio.CancelledError) as error:
                self._end(future, error=BrokenExecutor(f"Dask has forgotten the call: {describe(error)}"))
            except BaseException as error:
                self._end(future, error=error)
            finally:
                # Dask repeats a call whose result is lost with the process that holds it.
                call.release()

        async def cancel() -> None:
            await client.cancel([call], asynchronous=True)

        asyncio.run_coroutine_threadsafe(follow(), loop)
        return lambda: asyncio.run_coroutine_threadsafe(cancel(), loop)

    def _close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _allowed_failures(dask_scheduler: Any) -> int:
    """Return how often the scheduler repeats a call whose process ended; Dask passes it by this name."""
    failures: int = dask_scheduler.allowed_failures
    return failures


def ray() -> Executor:
    """Return an executor on the cluster of `RAY_ADDRESS`, or on one of this machine."""
    import ray as engine  # noqa: PLC0415 - it is optional

    if not engine.is_initialized():
        is_main = threading.current_thread() is threading.main_thread()
        former = signal.getsignal(signal.SIGTERM) if is_main else None
        engine.init(log_to_driver=False, include_dashboard=False)
        # Ray's handler would end the worker at once.
        if former is not None:
            signal.signal(signal.SIGTERM, former)
    return RayExecutor()


class RayExecutor(EngineExecutor):
    """Calls functions as tasks of Ray; `options` are those of its `remote`, such as `num_gpus`.

    Ray, to which the process has connected, is left with this object.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        import ray as engine  # noqa: PLC0415 - it is optional

        self._ray = engine
        # The policy of a job decides whether a call whose process ended runs again.
        self._remote = engine.remote(max_retries=0, **options)(_call)

    def _send(
        self, future: "Future[Any]", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Callable[[], object]:
        if not self._ray.is_initialized():
            raise RuntimeError("the process has left Ray")
        call = self._remote.remote(fn, args, kwargs)
        _follow(self, call.future(), future)
        return lambda: self._ray.cancel(call)

    def _close(self) -> None:
        self._ray.shutdown()


def _call(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _follow(executor: EngineExecutor, answer: "Future[Any]", future: "Future[Any]") -> None:
    """End a future with the future of an engine."""

    def end(ended: "Future[Any]") -> None:
        error = ended.exception()
        executor._end(future, None if error else ended.result(), error)

    answer.add_done_callback(end)


def parsl() -> Executor:
    """Return an executor of Parsl on this machine, with a process for each processor."""
    from parsl.config import Config  # noqa: PLC0415 - it is optional
    from parsl.executors import HighThroughputExecutor  # noqa: PLC0415 - it is optional
    from parsl.providers import LocalProvider  # noqa: PLC0415 - it is optional

    programs = Path(sys.executable).parent
    processes = HighThroughputExecutor(
        label="zndraw_joblib",
        address="127.0.0.1",
        max_workers_per_node=os.cpu_count() or 1,
        # A block that was killed is noticed after the threshold, and another one starts.
        heartbeat_period=2,
        heartbeat_threshold=10,
        interchange_launch_cmd=[str(programs / "interchange.py")],
        provider=LocalProvider(max_blocks=1, worker_init=f"export PATH='{programs}':$PATH"),
    )
    return ParslExecutor(Config(executors=[processes], run_dir=tempfile.mkdtemp(prefix="parsl-")))


class ParslExecutor(EngineExecutor):
    """Calls functions by a configuration of Parsl, whose `retries` should be 0.

    Parsl cannot cancel: a call whose future is cancelled runs as soon as a process is free.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        from parsl.concurrent import ParslPoolExecutor  # noqa: PLC0415 - it is optional
        from parsl.dataflow.dflow import DataFlowKernel  # noqa: PLC0415 - it is optional
        from parsl.executors.errors import BadStateException  # noqa: PLC0415 - it is optional

        self._kernel = DataFlowKernel(config)
        self._pool = ParslPoolExecutor(dfk=self._kernel)
        self._bad_state = BadStateException

    def _send(
        self, future: "Future[Any]", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Callable[[], object]:
        _follow(self, self._pool.submit(fn, *args, **kwargs), future)
        return lambda: None

    def _end(self, future: "Future[Any]", result: Any = None, error: BaseException | None = None) -> None:
        if isinstance(error, self._bad_state):
            error = BrokenExecutor(f"Parsl starts no more processes: {describe(error)}")
        super()._end(future, result, error)

    def _close(self) -> None:
        self._kernel.cleanup()


# How long a process of executorlib may take to start, and how often one with a call is looked at.
_START_SECONDS = 120.0
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


def executorlib() -> Executor:
    """Return an executor of executorlib on this machine, with a process for each processor."""
    return ExecutorlibExecutor(os.cpu_count() or 1)


def _single_node(**resources: Any) -> Executor:
    from executorlib import SingleNodeExecutor  # noqa: PLC0415 - it is optional

    # With more than one process executorlib gives a call whose process ended to another one.
    executor: Executor = SingleNodeExecutor(
        max_workers=1,
        block_allocation=True,
        disable_dependencies=True,
        hostname_localhost=True,
        resource_dict=resources,
    )
    return executor


class ExecutorlibExecutor(EngineExecutor):
    """Calls functions in processes of executorlib, each of which runs one call at a time.

    `make` returns an executor of executorlib with one process, such as its `SlurmJobExecutor`; without it
    `resources` are those of a `SingleNodeExecutor`, such as `cores`. A process that has ended is replaced.
    """

    def __init__(self, processes: int, make: Callable[[], Executor] | None = None, **resources: Any) -> None:
        super().__init__()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._processes = [_Process(make or partial(_single_node, **resources)) for _ in range(processes)]
        self._threads = [
            threading.Thread(
                target=self._serve, args=(process,), name="zndraw-joblib-executorlib", daemon=True
            )
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def _send(
        self, future: "Future[Any]", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Callable[[], object]:
        self._calls.put((future, partial(fn, *args, **kwargs)))
        # One that waits was forgotten with its future, and executorlib cannot end one that runs.
        return lambda: None

    def _serve(self, process: "_Process") -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            with self._lock:
                is_open = self._open is not None and future in self._open
            if not is_open:
                continue
            try:
                self._end(future, process.run(function))
            except BaseException as error:
                self._end(future, error=error)

    def _close(self) -> None:
        for process in self._processes:
            self._calls.put(None)
            process.end()
        until = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


class _Process:
    """A process of executorlib. `_pid` is its id, 0 if it is no child of this one, and None until it runs."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        self._pid: int | None = None
        self._is_over = False

    def run(self, function: Callable[[], Any]) -> Any:
        """Run a call, in another process if the last one has ended. Raises what it raises."""
        if _has_ended(self._pid):
            self._leave()
        executor = self._executor or self._start()
        try:
            return self._result(executor, function)
        except BaseException:
            self._leave()
            raise

    def _start(self) -> Executor:
        try:
            with self._lock:
                if self._is_over:
                    raise RuntimeError("The executor is shut down")
                self._executor = executor = self._make()
            self._pid = self._result(executor, partial(_begin, os.getpid()), _START_SECONDS)
            if self._is_over:
                raise RuntimeError("The executor is shut down")
        except BaseException as error:
            self._leave()
            raise BrokenExecutor(f"No process of executorlib starts: {describe(error)}") from error
        return executor

    def _result(self, executor: Executor, function: Callable[[], Any], seconds: float = inf) -> Any:
        """Return the result of a call. executorlib waits for ever for a process that ended before it."""
        answer = executor.submit(_call, function, (), {})
        until = time.monotonic() + seconds
        while not wait([answer], _LOOK_SECONDS).done and time.monotonic() < until:
            if _has_ended(self._pid):
                # executorlib itself notices the end of a process in a call within a second.
                wait([answer], 2 * _LOOK_SECONDS)
                break
        if not answer.done():
            raise ChildProcessError(f"the process {self._pid or ''} of executorlib does not answer")
        return answer.result()

    def _leave(self) -> None:
        """End the process, also in a call. executorlib itself ends it only between two calls."""
        with self._lock:
            executor, self._executor, pid, self._pid = self._executor, None, self._pid, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        if pid and not _has_ended(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> None:
        """End the process. One that starts ends as soon as it has started."""
        with self._lock:
            self._is_over = True
            is_starting = self._executor is not None and self._pid is None
        if not is_starting:
            self._leave()


def _begin(worker: int) -> int:
    """Let this process end with its parent. Return its id if that is the worker, otherwise 0."""
    parent = os.getppid()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    return os.getpid() if parent == worker else 0


def _has_ended(pid: int | None) -> bool:
    """Return whether a child of this process has ended; its exit status is left to executorlib."""
    if not pid:
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
