"""Executors of clusters, by address: `tcp://host:8786` is a Dask scheduler; `ray` and `ray://host:10001` are Ray.

Both give a task to another worker, up to three times, if the worker that has it dies.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from packer.errors import UsageError

_log = logging.getLogger(__name__)


@contextmanager
def executor_at(address: str) -> Iterator[Executor]:
    """Connect to a cluster and return its executor; without a cluster, `ray` starts one on this machine.

    Raises:
        UsageError: its package is not installed, or no scheduler answers.
    """
    is_ray = address == "ray" or address.startswith("ray://")
    package, extra = ("ray", "ray") if is_ray else ("distributed", "distributed")
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise UsageError(
            f"--scheduler {address} needs the package {package}: pip install '.[{extra}]' in a clone of packer"
        ) from None
    with (_ray_executor if is_ray else _dask_executor)(module, address) as executor:
        yield executor


@contextmanager
def _dask_executor(distributed: Any, address: str) -> Iterator[Executor]:
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise UsageError(f"--scheduler {address}: {error}; give the address that the scheduler printed") from None
    with client:
        if not client.nthreads():
            _log.warning(
                "%s has no worker yet; packing begins when one comes: start `dask worker %s`", address, address
            )
        # Not pure: Dask would hash each task, to find those that are equal.
        yield client.get_executor(pure=False)


@contextmanager
def _ray_executor(ray: Any, address: str) -> Iterator[Executor]:
    try:
        # Without an address Ray finds the cluster that this machine is part of, and else starts one.
        ray.init(None if address == "ray" else address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"--scheduler {address}: {error}") from None
    try:
        yield _RayExecutor(ray)
    finally:
        ray.shutdown()


class _RayExecutor(Executor):
    """Runs each call as a task of Ray. A future that is cancelled cancels its task, also one that runs."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._task = ray.remote(max_retries=3)(_call)

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        task = self._task.remote(call, *arguments, **named)

        def finish(finished: Future[Any]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            error = finished.exception()
            if error is None:
                future.set_result(finished.result())
            else:
                # Ray's own error has a traceback for its text.
                future.set_exception(getattr(error, "cause", None) or error)

        task.future().add_done_callback(finish)
        future.add_done_callback(lambda finished: self._ray.cancel(task) if finished.cancelled() else None)
        return future


def _call(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return call(*arguments, **named)
