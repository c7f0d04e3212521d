"""The progress and the log of an attempt, as they wait to be reported: bounded, numbered, repeatable."""

import json
import math
import os
import pickle
import threading
from typing import Any

import pytest

from zndraw_joblib.jobs.task_channel import MAX_WAITING_BYTES, MAX_WAITING_LINES, Line, TaskChannel
from zndraw_joblib.jobs.task_context import TaskContext
from zndraw_joblib.wire.progress import MAX_LINE_CHARACTERS, LogPart, LogSource, Progress


class Task(TaskContext):
    """A task with a channel."""

    def __init__(self) -> None:
        self.task_id, self.channel = "a-task", TaskChannel("a-task", 1)

    @property
    def reported(self) -> dict[str, Any] | None:
        """The progress that would be reported."""
        report = self.channel.take()
        return report.progress if report else None


def texts(channel: TaskChannel) -> list[str]:
    """Return the lines that wait."""
    return [line.text for report in channel.take_all() for line in report.lines]


def test_a_task_that_reports_nothing_holds_nothing() -> None:
    """There is no report, whatever is called at its end."""
    channel = TaskChannel()
    channel.finish()
    assert channel.take() is None
    assert not channel.take_all()
    assert channel.size == 0


def test_only_the_latest_progress_is_reported_once() -> None:
    """A thousand calls are one report; after it was acknowledged there is none."""
    task = Task()
    for number in range(1000):
        task.progress(number, 1000, unit="frames")
    report = task.channel.take()
    assert report is not None
    assert report.progress == {"current": 999, "total": 1000, "unit": "frames"}
    task.progress(1000)
    task.channel.acknowledge(report)
    assert task.reported == {"current": 1000, "total": 1000, "unit": "frames"}
    task.channel.acknowledge(*task.channel.take_all())
    assert task.channel.take() is None


def test_lines_keep_their_numbers_until_they_are_acknowledged() -> None:
    """A repeated report has the same lines, and more; an old acknowledgement changes nothing."""
    task = Task()
    task.log("one\ntwo")
    first = task.channel.take()
    task.log("three")
    again = task.channel.take()
    assert first is not None
    assert again is not None
    assert (first.first, len(first.lines)) == (1, 2)
    assert (again.first, [line.text for line in again.lines]) == (1, ["one", "two", "three"])
    task.channel.acknowledge(again)
    task.log("four")
    task.channel.acknowledge(first)
    last = task.channel.take()
    assert last is not None
    assert (last.first, texts(task.channel)) == (4, ["four"])


def test_the_oldest_lines_are_dropped_and_leave_a_gap() -> None:
    """At most 10,000 lines or 1 MiB wait; the numbers of the dropped ones are missing."""
    task = Task()
    for number in range(MAX_WAITING_LINES + 5):
        task.channel.add([Line(0, str(number))])
    waiting = texts(task.channel)
    report = task.channel.take()
    assert report is not None
    assert waiting[-1] == str(MAX_WAITING_LINES + 4)
    assert report.first == MAX_WAITING_LINES + 5 - len(waiting) + 1
    assert task.channel.size <= MAX_WAITING_BYTES
    parts = task.channel.take_all()
    assert all(len(part.lines) <= 1000 for part in parts)
    assert [part.first + len(part.lines) for part in parts[:-1]] == [part.first for part in parts[1:]]


def test_a_hundred_megabytes_are_bounded() -> None:
    """One huge text and many small ones keep the last lines, with their numbers."""
    channel = TaskChannel()
    lines = 1_000_000
    channel.write("x" * 99 + "\n", LogSource.STDOUT)
    channel.write(("y" * 99 + "\n") * lines, LogSource.STDOUT)
    channel.write("the last\n", LogSource.STDOUT)
    last = channel.take_all()[-1]
    assert last.first + len(last.lines) - 1 == lines + 2
    assert last.lines[-1].text == "the last"
    assert channel.size <= MAX_WAITING_BYTES
    channel.write("z" * 10_000_000, LogSource.STDOUT)
    channel.write("z" * 10_000_000 + "\n", LogSource.STDOUT)
    (cut,) = [text for text in texts(channel) if text.startswith("z")]
    assert len(cut) == MAX_LINE_CHARACTERS
    assert cut.endswith("… (truncated)")


def test_captured_text_becomes_lines(subtests: pytest.Subtests) -> None:
    """As a terminal shows them, and as every database can store them."""
    for writes, lines in [
        (["a", " ", "b", "\n"], ["a b"]),
        (["a\nb\n\nc"], ["a", "b", "", "c"]),
        (["\r 10%", "\r 20%", "\r100%", "\n"], ["100%"]),
        (["10%\r20%\r", "30%\r"], ["30%"]),
        (["windows\r\n"], ["windows"]),
        (["\ud800 and \x00\n"], ["\\ud800 and \\x00"]),
        (["é 🙂\n"], ["é 🙂"]),
        (["", "\n"], [""]),
    ]:
        with subtests.test(writes=writes, lines=lines):
            channel = TaskChannel()
            for text in writes:
                channel.write(text, LogSource.STDERR)
            channel.finish()
            assert texts(channel) == lines
            for report in channel.take_all():
                part = LogPart.model_validate(json.loads(b"{" + report.json + b"}")["log"])
                assert [line.source for line in part.lines] == [LogSource.STDERR] * len(lines)


def test_lines_of_threads_do_not_mix() -> None:
    """A line that one thread has begun is not continued by another thread."""
    channel = TaskChannel()
    channel.write("main ", LogSource.STDOUT)
    thread = threading.Thread(target=channel.write, args=("thread\n", LogSource.STDOUT))
    thread.start()
    thread.join()
    channel.write("thread\n", LogSource.STDOUT)
    assert texts(channel) == ["thread", "main thread"]


def test_content_is_noticed_once_until_it_was_reported() -> None:
    """`on_content` is called for the first content, and again after `notice_again`."""
    noticed: list[TaskChannel] = []
    channel = TaskChannel(on_content=noticed.append)
    channel.add([Line(0, "one")])
    channel.add([Line(0, "two")])
    assert len(noticed) == 1
    channel.notice_again()
    assert len(noticed) == 2
    channel.acknowledge(*channel.take_all())
    channel.notice_again()
    assert len(noticed) == 2
    channel.add([Line(0, "three")])
    assert len(noticed) == 3


def test_a_closed_channel_keeps_nothing() -> None:
    """Also not what comes later."""
    noticed: list[TaskChannel] = []
    channel = TaskChannel(on_content=noticed.append)
    channel.close()
    channel.add([Line(0, "late")])
    channel.set_progress({"current": 1})
    assert (channel.take(), noticed) == (None, [])


def test_a_copy_is_a_channel_of_its_own() -> None:
    """What is pickled for another process has no content."""
    channel = TaskChannel("a-task", 3, captures=True, on_content=print)
    channel.add([Line(0, "one")])
    copy = pickle.loads(pickle.dumps(channel))  # noqa: S301 - its own
    assert (copy.task_id, copy.attempt, copy.captures, copy.on_content) == ("a-task", 3, True, None)
    assert copy.take() is None


def test_a_forked_process_keeps_nothing_and_does_not_wait() -> None:
    """Its parent's thread may hold a lock for ever."""
    channel = TaskChannel()
    channel.add([Line(0, "one")])
    content = channel.content
    assert content is not None
    with content.lock:
        pid = os.fork()
        if pid == 0:
            channel.add([Line(0, "two")])
            channel.set_progress({"current": 1})
            TaskChannel().add([Line(0, "its own")])
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert texts(channel) == ["one"]


def test_any_number_is_reported(subtests: pytest.Subtests) -> None:
    """What is no number for JSON is unknown; a job does not fail because of it."""
    for given, reported in [
        ((1, 2), {"current": 1, "total": 2}),
        ((0.5, 1), {"current": 0.5, "total": 1}),
        ((math.nan, math.inf), {"current": None, "total": None}),
        ((10**30, True), {"current": None, "total": 1}),
    ]:
        with subtests.test(given=given, reported=reported):
            task = Task()
            task.progress(*given)
            assert task.reported == reported
            Progress.model_validate(reported)


def test_a_text_is_no_number() -> None:
    """A mistake in the job is noticed at once."""
    with pytest.raises(TypeError, match="total must be a number, not '7'"):
        Task().progress(1, "7")  # type: ignore[arg-type]


def test_data_that_cannot_be_reported_is_left_out() -> None:
    """The job continues, and its log names the fault."""
    task = Task()
    task.progress(1, data={"energy": [1.5, None]})
    task.progress(2, data={"energy": object()})
    task.progress(3, data={"energy": "x" * 20_000})
    assert task.reported == {"current": 3, "data": {"energy": [1.5, None]}}
    first, second = texts(task.channel)
    assert "not JSON serializable" in first
    assert "20,013 bytes" in second


def test_long_texts_are_cut() -> None:
    """A server accepts the progress, also if a text grows when what JSON cannot express is replaced."""
    task = Task()
    task.progress(1, unit="u" * 100, message="\ud800" * 2000)
    assert task.reported is not None
    assert task.reported["unit"] == "u" * 64
    assert len(task.reported["message"]) == 1000
    Progress.model_validate(task.reported)


def test_track_reports_each_item() -> None:
    """The total is that of the iterable; a generator has none."""
    task = Task()
    for item in task.track(["a", "b", "c"], unit="frames", message="reading"):
        assert task.reported is not None
        assert task.reported["current"] == "abc".index(item)
    assert task.reported == {"current": 3, "total": 3, "unit": "frames", "message": "reading"}
    other = Task()
    assert list(other.track(number for number in range(4))) == [0, 1, 2, 3]
    assert other.reported == {"current": 4}


def test_an_unknown_level_is_refused() -> None:
    """A mistake in the job is noticed at once."""
    with pytest.raises(ValueError, match="loud"):
        Task().log("text", level="loud")
