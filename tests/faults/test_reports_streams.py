"""What a command prints cannot end it, nor change its record or its exit code."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusal import ended, matches
from small_runs import ROOT, SMALL, line, near, rows_of, without_clocks

from experiments import __main__, plot, schedule, sweep, table, train

pytestmark = pytest.mark.usefixtures("quickly_compiled")

ARGS = ["--rounds=2", "--eval_every=1"]
DROPPED = "warning   stdout: expected an open stream, found ...; the rest is dropped\n"


def closed_pipe(buffering):
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {
    "a pipe that head has left": lambda: closed_pipe(1),  # buffered by lines, as unbuffered
    "the same, found out at the end": lambda: closed_pipe(2**20),
    "a full disk": lambda: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"),
    "closed": closed,
    "none": lambda: None,
}


@pytest.fixture(params=STREAMS)
def broken(request, monkeypatch):
    """`broken()`: standard output is broken anew. In the test, as pytest sets it before."""
    made = []

    def anew():
        made.append(STREAMS[request.param]())
        monkeypatch.setattr(sys, "stdout", made[-1])

    yield anew
    for stream in filter(None, made):
        stream.close()  # what is left in it goes nowhere, and no error comes of it


@pytest.fixture
def quickly_drawn(monkeypatch):
    """Figures of nothing, as those of a run take longer than its rounds."""
    for name in ("curves.draw_curves", "schedule_figure.draw"):
        draw = lambda *args: next(one for one in args if isinstance(one, Path)).touch()  # noqa: E731
        monkeypatch.setattr(f"experiments.figures.{name}", draw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run, and its curves."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main(line(*ARGS, f"--out_dir={folder}")) == 0
    return folder


def warned(capsys, code, main, *argv):
    """The command has this exit code, and one line says that its output is dropped."""
    matches(DROPPED, ended(code, capsys, main, *argv).err)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("quickly_drawn")
def test_nf_13_a_run_has_its_record_and_exit_code_without_its_output(
    broken, whole, tmp_path, capsys
):
    broken()
    folder = tmp_path / "a"
    warned(capsys, 0, train.main, *line(*ARGS, f"--out_dir={folder}"))
    assert without_clocks(rows_of(folder)) == without_clocks(rows_of(whole))
    assert names(folder) == names(whole)  # the lock is gone
    said = ended(2, capsys, train.main, *line("--rounds=0"))  # nothing is printed
    matches("train: --rounds: expected ..., found 0\n", said.err)


@pytest.mark.usefixtures("quickly_drawn")
def test_nf_13_a_run_that_diverges_keeps_its_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", closed_pipe(1))
    argv = line(*ARGS, "--server_lr=3e38", "--local_lr=3e38", "--max_rejected=0")
    said = ended(3, capsys, train.main, *argv, f"--out_dir={tmp_path / 'a'}").err
    matches(f"{DROPPED}warning   ...: expected finite uploads, found ... rejected ...\n", said)


def test_nf_13_a_sweep_trains_all_of_its_trials(whole, tmp_path, capsys, monkeypatch):
    """The first of them has the settings of the run."""
    argv = ["sweep", *SMALL, *ARGS, "--devices=1", "--compilation_cache=off"]
    argv += ["--vary=server_lr=0.1,0.2", f"--out_dir={tmp_path}"]
    monkeypatch.setattr(sys, "stdout", closed_pipe(1))
    warned(capsys, 0, sweep.main, *argv)
    own = ["provenance.json", "results.csv", "summary.json", "sweep.json", "trials"]
    assert names(tmp_path) == own
    assert names(tmp_path / "trials") == ["server_lr=0.1.json", "server_lr=0.2.json"]
    first = json.loads((tmp_path / "trials" / "server_lr=0.1.json").read_text())
    assert without_clocks(first["rows"]) == near(without_clocks(rows_of(whole)), 1e-5)
    said = ended(0, capsys, sweep.main, *argv)  # nothing is left to do
    choices = json.loads((tmp_path / "summary.json").read_text())["choices"]
    assert len(choices) == 1 and not said.err


@pytest.mark.usefixtures("quickly_drawn")
def test_nf_13_other_commands_write_what_they_write(broken, whole, tmp_path, capsys):
    broken()
    made = ["--dataset=digits", "--model=logistic", "--rounds=4", f"--file={tmp_path}/s.npz"]
    warned(capsys, 0, schedule.main, "schedule", *made)
    assert names(tmp_path) == ["s.log.npz", "s.npz", "s.png"]
    broken()
    warned(capsys, 0, plot.main, "plot", whole, f"--out={tmp_path / 'p.svg'}")
    assert "</svg>" in (tmp_path / "p.svg").read_text()
    broken()
    warned(capsys, 0, table.main, "table", whole)


def test_nf_13_help_that_nobody_reads_is_no_fault(broken, capsys):
    for main in (train.main, __main__.main):
        broken()
        assert not ended(0, capsys, main, "ccfl", "--help").err


class Gone(io.StringIO):
    """A terminal that is no more."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(5, "Input/output error")


@pytest.mark.usefixtures("quickly_drawn")
def test_nf_13_a_progress_bar_on_a_terminal_that_is_gone(whole, tmp_path, monkeypatch, capsys):
    """Nor do warnings, which have nowhere to go."""
    monkeypatch.setattr(sys, "stderr", Gone())
    argv = line(*ARGS, "--progress", f"--out_dir={tmp_path / 'a'}")
    assert train.main(argv) == 0
    assert without_clocks(rows_of(tmp_path / "a")) == without_clocks(rows_of(whole))
    monkeypatch.setattr(sys, "stdout", Gone())
    assert train.main([*argv, "--resume"]) == 0
    assert train.main([*argv, "--rounds=0"]) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_nf_13_a_letter_that_the_terminal_lacks_is_written_in_others(
    whole, tmp_path, monkeypatch, encoding
):
    """The folder of the second command has a byte that is no text anywhere."""
    into = io.BytesIO()
    for name in ("ł", "\udcfc"):
        (tmp_path / name).symlink_to(whole)
        stream = io.TextIOWrapper(into, encoding, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        assert table.main(["table", str(tmp_path / name)]) == 0
        assert plot.main(["plot", str(whole), f"--out={tmp_path / name}.svg"]) == 0
        stream.detach()
    text = into.getvalue().decode(encoding)
    assert "\\u0142.svg\n" in text and "\\udcfc.svg\n" in text


def test_nf_13_a_file_never_gets_the_descriptor_of_a_closed_stream(tmp_path):
    """Else what libraries and signals print would be in it."""
    code = (
        "import os, sys\n"
        "from experiments.config import output\n"
        "with output.steady():\n"
        "    file = open(sys.argv[1], 'w')\n"
        "    for number in (1, 2):\n"
        "        os.write(number, b'words')\n"
        "print('nowhere')\n"
        "sys.exit(7)\n"
    )
    words = f"exec {sys.executable} -c '{code.replace(chr(39), chr(34))}' {tmp_path / 'file'}"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for streams in ("<&- >&- 2>&-", ">&-", "2>&-"):
        done = subprocess.run(["sh", "-c", f"{words} {streams}"], env=env, timeout=60)
        assert done.returncode == 7 and (tmp_path / "file").read_text() == ""
