"""Where a handler is when its time is up: the worker asks by a signal, and the child answers in its output pipe.

The signal handler runs in the main thread, which runs the handler of the job or waits for it (handler_place.py).
A call in C that does not return to the interpreter delays the signal handler; then there is no answer. The pump does
not block: it kills the child a moment later, and reads what is in the pipe by then. Without `worker.capture_output`
there is no pipe, and nothing is asked.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import TYPE_CHECKING

from fileq.handlers.handler_place import place_of
from fileq.handlers.task import Task
from fileq.worker.executors.process.output_pipe import OutputPipe
from fileq.worker.executors.stop_request import StopRequest

if TYPE_CHECKING:  # of the worker; children do not need it
    from fileq.worker.executors.process.child_handle import ChildHandle

ASKS = 5  # signals: one may have no effect (see ChildHandle.wake()), or a busy machine has no core for the child
ANSWER_S = 0.05  # how long the child may take after each signal


class StackReporter:
    """The signal handler of a child."""

    def __init__(self, output: OutputPipe | None) -> None:
        self._output = output

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        # No text: the child is between two tasks, because the signal came too late.
        if self._output is not None and (text := place_of(threading.get_ident(), frame)):
            self._output.report_stack(text)


class StackRequests:
    """The worker's side: how often each child was asked, and about which task."""

    def __init__(self) -> None:
        self._asked: dict[ChildHandle, tuple[Task, int]] = {}

    def ask(self, handle: ChildHandle, now_s: float) -> bool:
        """Asks a child whose time is up, and gives it a moment more. False if it is to be killed now."""
        task, output = handle.task, handle.output
        if task is None or output is None or handle.stop_request is not StopRequest.NONE:
            return False
        about, count = self._asked.pop(handle, (task, 0))
        if about is not task:
            count = 0  # the earlier requests were about a task that has ended since
        if output.has_stack or count == ASKS:
            return False
        self._asked[handle] = (task, count + 1)
        handle.ask_for_stack()
        handle.kill_at_s = now_s + ANSWER_S
        return True
