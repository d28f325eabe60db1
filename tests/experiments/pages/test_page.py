"""experiments/report.py without a browser: what is in the page, and what cannot get into it."""

import html.parser
import json
import re

import numpy as np
import pytest
from plots import rows
from report_folders import SCHEDULE, data_of, make_run, make_runs, make_sweep, written

import ccfl_jax as ccfl
from ccfl_jax.io.files import replace_file
from ccfl_jax.runs import metrics, provenance, run_config
from experiments import plot, report, table
from experiments.pages import visits
from experiments.sweeps import results


class Parsed(html.parser.HTMLParser):
    """The elements of a page, and the cells of its table of results."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.cells, self._in_table = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_table |= ("id", "results") in attrs
        if self._in_table and tag == "tr":
            self.cells.append([])
        if self._in_table and tag in ("th", "td"):
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        self._in_table &= tag != "table"

    def handle_data(self, data):
        if self._in_table and self.cells and self.cells[-1] and data.strip():
            self.cells[-1][-1] += data


def test_curves_of_runs_are_their_rows(tmp_path):
    page = written(tmp_path, *make_runs(tmp_path)).read_text()
    found = data_of(page)["curves"]
    assert [one["label"] for one in found["lines"]] == [
        "alpha 0.25", "alpha 4"
    ]  # fmt: skip
    first, second = found["lines"]
    assert first["x"] == {
        "round": [0, 10, 20], "client_updates": [0, 50, 100], "samples": [0, 1000, 2000],
        "bytes": [0, 700, 1400], "virtual_time": [0, 60, 120], "seconds": [0, 2, 4],
    }  # fmt: skip
    assert first["y"]["test_recall_at_5"] == [[0.125, 0.5, 0.75]] and first["diverged"] is None
    assert second["y"]["test_recall_at_5"] == [[0.125, 0.625, None]] and second["diverged"] == 17
    assert [*found["columns"]][:3] == ["test_recall_at_5", "train_recall_at_5", "test_loss"]
    assert found["axes"]["bytes"] == "bytes sent and received"


def test_the_table_has_last_and_best_scores(tmp_path):
    head, *lines = Parsed(written(tmp_path, *make_runs(tmp_path)).read_text()).cells
    assert head[:6] == [
        "method", "server_lr", "alpha", "rounds", "test score", "best test score"
    ]  # fmt: skip
    assert [line[2:6] for line in lines] == [
        ["0.25", "20", "0.7500", "0.7500"], ["4", "20", "diverged", "0.6250"]
    ]  # fmt: skip


def test_a_line_of_a_sweep_is_a_mean_and_a_range_over_seeds(tmp_path):
    """The chosen setting, by training score, is that of rate 0.2; the table has both."""
    seeds = [[0.1, 0.5, 0.7], [0.3, 0.4, 0.9], [0.1, 0.1, 0.2]]
    folder = make_sweep(tmp_path / "s", {0.1: [[0.1, 0.2, 0.3]] * 3, 0.2: seeds})
    page = written(tmp_path, folder).read_text()
    (one,) = data_of(page)["curves"]["lines"]
    assert one["seeds"] == 3 and one["group"] == str(folder)
    expected = [np.mean(seeds, axis=0), np.min(seeds, axis=0), np.max(seeds, axis=0)]
    np.testing.assert_allclose(one["y"]["test_recall_at_5"], expected, rtol=1e-6)
    assert [line[1] for line in Parsed(page).cells] == ["server_lr", "0.1", "0.2"]


def test_a_comparison_is_the_final_runs_of_its_worlds(tmp_path):
    for world in ("paper", "nights"):
        make_sweep(tmp_path / "c" / world / "final", {0.1: [[0.1, 0.2]]})
        make_sweep(tmp_path / "c" / world / "tuning", {0.3: [[0.1, 0.2]]})
    results.write_summary(tmp_path / "c" / results.SUMMARY, {"environment": {"jax": "1.2.3"}})
    page = written(tmp_path, tmp_path / "c", make_run(tmp_path / "r", [0.1, 0.2])).read_text()
    names = [one["group"] for one in data_of(page)["curves"]["lines"]]
    assert names == [f"{tmp_path / 'r'}", f"{tmp_path / 'c'}, nights", f"{tmp_path / 'c'}, paper"]
    assert [line[0] for line in Parsed(page).cells] == ["folder", *names]
    assert page.count("1.2.3") == 2


def test_the_visits_are_those_of_the_schedule(tmp_path):
    """Of a run its file, cut to the rounds that it was trained; equal ones are one."""
    clock = SCHEDULE.replace(time=np.arange(1.0, 21.0), work_unit="steps")
    short = make_run(tmp_path / "short", [0.1, 0.2], alpha=1.0)
    clock.save(short / metrics.SCHEDULE)
    both, one = data_of(written(tmp_path, *make_runs(tmp_path), short).read_text())["schedules"]
    assert both["name"] == "alpha 0.25, alpha 4"
    working = SCHEDULE.working()
    for name in ("client", "staleness", "work"):
        assert both[name] == getattr(SCHEDULE, name)[working].tolist()
    assert both["round"] == [t for t in range(20) for _ in range(working[t].sum())]
    assert (both["clients"], both["rounds"], both["time"]) == (6, 20, None)
    assert one["time"] == [*range(1, 11)] and one["unit"] == "steps"
    assert one["client"] == SCHEDULE.client[:10][working[:10]].tolist()


def test_the_visits_of_a_sweep_are_drawn_again_or_those_of_its_files(tmp_path, monkeypatch):
    """The first seed's. One that the trials did not have is not shown, nor one that is gone."""
    monkeypatch.setattr(visits, "_MOST", 25)
    drawn = make_sweep(tmp_path / "a", {0.1: [[0.1, 0.2, 0.3]] * 2}, rounds=20, max_delay=3)
    own = ccfl.random_schedule(0, 20, 100, max_delay=3, local_work=3, randomness=2.0)
    file = f"{tmp_path}/s-{{seed}}.npz"
    SCHEDULE.save(tmp_path / "s-0.npz")
    settings = {"schedule_file": file, "rounds": 20, "num_clients": 6, "buffer_size": 2}
    given = make_sweep(tmp_path / "b", {0.1: [[0.1, 0.2, 0.3]] * 2}, **settings)
    page = written(tmp_path, drawn, given).read_text()
    first, second = data_of(page)["schedules"]
    assert first["client"] == own.client[:5].reshape(-1).tolist() and first["shown"] == 5
    assert first["name"] == f"{drawn} seed=0" and first["rounds"] == 20
    filled = SCHEDULE.working().sum(axis=1).cumsum()
    assert second["shown"] == (filled <= 25).sum() and filled[-1] > 25
    assert (
        second["client"]
        == SCHEDULE.client[SCHEDULE.working()][: filled[second["shown"] - 1]].tolist()
    )
    provenance.write(drawn, {"schedule[seed=0]": own.replace(work=own.work + 1).digest()})
    (tmp_path / "s-0.npz").unlink()
    first, second = data_of(written(tmp_path, drawn, given).read_text())["schedules"]
    assert first["missing"] == "another one than its trials had"
    assert second["missing"] == f"no {tmp_path}/s-0.npz"


def test_what_a_user_has_named_cannot_break_the_page(tmp_path):
    evil = '</script><img src=x onerror="alert(1)">\u2028&amp;\udcff'
    (tmp_path / "<").mkdir()
    folders = [  # one is </script><b>
        make_run(tmp_path / name, [0.1, 0.2], task=evil, attack=f"{number}{evil}")
        for number, name in enumerate(("</script><b>", "b&lt;"))
    ]
    provenance.write(folders[0], {"train": evil})
    page = written(tmp_path, *folders).read_text()
    parsed = Parsed(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "b")]
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    line = data_of(page)["curves"]["lines"][0]
    assert line["group"] == ", ".join(map(str, folders))
    assert line["label"].startswith("attack 0</script><img src=x")
    assert not [own for _, own in parsed.tags if "onerror" in own] and "\\udcff" in page


def test_it_needs_nothing_but_itself(tmp_path):
    page = written(tmp_path, *make_runs(tmp_path)).read_text()
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]
    tags = Parsed(page).tags
    assert not [tag for tag, _ in tags if tag in ("link", "iframe", "img", "object")]
    assert not [own for _, own in tags if "src" in own] and not re.search(r"url\(|@import", page)
    policy = next(own["content"] for _, own in tags if "http-equiv" in own)
    assert policy.startswith("default-src 'none'")
    assert len(page) < 60_000


def test_bad_words_and_folders_are_one_line_and_no_file(tmp_path, refuses):
    out, run = f"--out={tmp_path}/x.html", make_run(tmp_path / "a", [0.1, 0.2])
    refuses("FOLDER: expected at least one, found none", report.main, "report", out)
    message = "--out: expected a file for the page, as report.html, found none"
    refuses(message, report.main, "report", run)
    message = "--out: expected a file that ends in .html, found 'x.pdf'"
    refuses(message, report.main, "report", run, "--out=x.pdf")
    refuses("[Errno 2] ...", report.main, "report", run, f"--out={tmp_path}/none/x.html")
    replace_file(tmp_path / "a" / metrics.METRICS, json.dumps(rows([0.1])[0]) + "\n")
    message = f"{run}/{metrics.METRICS}: expected rounds and seconds > 0 in the last row, found ..."
    refuses(message, report.main, "report", run, out)
    sweep = make_sweep(tmp_path / "s", {0.1: [[0.1, 0.2]]}, rounds="many")
    message = f"{sweep}/{results.TRIALS}, server_lr=0.1 seed=0: --rounds: expected an integer ..."
    refuses(message, report.main, "report", sweep, out)
    make_run(tmp_path / "a", [0.1, 0.2], environment=[1])
    message = f"{run}/{run_config.CONFIG}: expected server, ... environment with ..."
    refuses(message, report.main, "report", run, out)
    sweep = make_sweep(tmp_path / "t", {0.1: [[0.1, 0.2]]})
    results.write_summary(sweep / results.SUMMARY, {"environment": [1]})
    message = f"{sweep}/{results.SUMMARY}: expected an environment, found [1]"
    refuses(message, report.main, "report", sweep, out)
    assert not [*tmp_path.glob("*.html*")]


COMMANDS = {"report": (report, "x.html"), "plot": (plot, "x.png"), "table": (table, None)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_of_several_runs_is_refused_with_their_names(name, tmp_path, refuses):
    command, out = COMMANDS[name]
    out = [f"--out={tmp_path / out}"] if out else []
    place = tmp_path / "runs"
    says = f"{place}: expected the folder of a run or a sweep, found"
    refuses(f"{says} none", command.main, name, place, *out)
    (place / "empty").mkdir(parents=True)
    refuses(f"{says} another one", command.main, name, place, *out)
    held = [make_run(place / letter, [0.1, 0.2]) for letter in "abcd"]
    held.append(make_sweep(place / "e", {0.1: [[0.1, 0.2]]}))
    held = [f"{one}" for one in held]
    refuses(f"{says} one that holds {', '.join(held)}", command.main, name, place, *out)
    make_sweep(place / "world" / "final", {0.1: [[0.1, 0.2]]})
    if name != "report":  # of a comparison it shows the worlds
        refuses(
            f"{says} one that holds {', '.join(held)} and 1 more", command.main, name, place, *out
        )
    assert not [*tmp_path.glob("x.*")]


def test_results_of_two_versions_are_not_put_beside_each_other(tmp_path, refuses):
    runs = make_runs(tmp_path)
    for folder, version in zip(runs, ("1", "2"), strict=True):
        provenance.write(folder, {"jax": version})
    out = f"--out={tmp_path}/x.html"
    message = "...: expected results of one provenance ..., found jax 1 -> 2"
    refuses(message, report.main, "report", *runs, out)
    assert report.main(["report", *map(str, runs), out, "--accept_changed=jax"]) == 0
