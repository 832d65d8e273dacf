import io

from rime_jax.tracking.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _run(stream, durations, every_s=10.0):
    clock = Clock()
    progress = Progress(len(durations), stream, every_s=every_s, clock=clock)
    for step, seconds in enumerate(durations, 1):
        clock.now += seconds
        progress.update(step, {"reward": step / 4})
    progress.close()
    return stream.getvalue()


def test_a_line_has_step_times_and_numbers():
    line = _run(io.StringIO(), [60, 2, 4, 2], every_s=0).splitlines()[2]
    assert line == "step 3/4 | 0:01:06 elapsed | 0:00:03 left | 3.00 s/step | reward 0.75"


def test_the_first_step_which_compiles_does_not_enter_the_time_left():
    lines = _run(io.StringIO(), [1000, 1, 1, 1], every_s=0).splitlines()
    assert "left" not in lines[0]
    assert "0:00:02 left" in lines[1]


def test_a_file_gets_at_most_one_line_each_interval_and_the_last():
    lines = _run(io.StringIO(), [1] * 25).splitlines()
    assert [line.split()[1] for line in lines] == ["1/25", "11/25", "21/25", "25/25"]


def test_a_terminal_gets_one_line_that_is_written_over():
    text = _run(Terminal(), [1] * 25)
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.count("\r") == 25


def test_a_resumed_run_counts_only_what_is_left():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100, stream, every_s=0, clock=clock)
    for step in (91, 92, 93):
        clock.now += 2
        progress.update(step, {})
    assert "step 93/100" in stream.getvalue() and "0:00:14 left" in stream.getvalue()
