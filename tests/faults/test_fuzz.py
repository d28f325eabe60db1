"""Every reader of files but those of traces (`test_fuzz_traces.py`), fed as `fuzzing` says.

A new reader is a line in READERS: its valid files, and a function of their folder that reads them
and asserts what it promises.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import sqlite3
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import corpus
import data_files
import jax
import numpy as np
import pytest
from fuzzing import SHARES, Reader, check_reader, legal_config, written
from problems import make_schedule

from ccfl_jax import Schedule
from ccfl_jax import data as fd
from ccfl_jax.runs import metrics, run_config
from experiments.config import run_flags
from experiments.config.sweep_file import SWEEP_FILE
from experiments.config.sweep_flags import Trial, parse_sweep
from experiments.corpora import debian
from experiments.figures import curves
from experiments.paper import presets
from experiments.sweeps import clients, lines, results, selection, summaries
from experiments.training.client_scores import CLIENTS


def read_idx(folder):
    (path,) = folder.iterdir()
    array = fd.read_idx(path)
    assert array.dtype == np.uint8 and array.size and 1 <= array.ndim <= 8


def read_images(name, shape):
    def read(folder):
        for part in fd.load_dataset(name, folder):
            assert part["x"].dtype == np.uint8 and part["x"].shape[1:] == shape
            assert part["y"].dtype == np.int32 and part["y"].shape == part["x"].shape[:1]
            assert 0 <= part["y"].min() <= part["y"].max() < fd.NUM_CLASSES[name]

    return read


def read_posts(folder, **arguments):
    train, test, counts = corpus.load(folder, **arguments)
    for part in (train, test):
        assert len({len(array) for array in part.values()}) == 1
        assert all(array.dtype == np.int32 for array in part.values())
        assert part["x"].shape[1] == corpus.SMALL["max_words"] and part["y"].shape[1] >= 1
        assert -2 <= part["x"].min() <= part["x"].max() < corpus.SMALL["vocabulary"]
        assert -1 <= part["y"].min() <= part["y"].max() < corpus.SMALL["num_tags"]
    assert (np.diff(train["client"]) >= 0).all() and (np.diff(train["client"]) <= 1).all()
    assert train["client"][0] == 0 and test["client"].max() <= train["client"].max()
    assert counts["clients"] >= counts["too_small"] >= 0


def read_sentences(folder):
    sizes = {"vocabulary": 5, "max_words": 4, "cache_dir": folder / "cache"}
    for part in fd.load_stackoverflow_nwp(folder, **sizes)[:2]:
        assert part["x"].shape == part["y"].shape == (len(part["client"]), 4)
        assert min(part["x"].min(), part["y"].min()) >= 0
        assert max(part["x"].max(), part["y"].max()) <= 5 + 3


def database_of(message):
    """The corpus with `message` as one of its examples."""
    update = "UPDATE examples SET serialized_example_proto = ? WHERE rowid = 1"
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(CORPUS[DATABASE])
        with db:
            db.execute(update, (message,))
        return db.serialize()


def packed(suffix, kind):
    database, *others = CORPUS.items()
    assert database[0] == DATABASE
    return {DATABASE + suffix: lzma.compress(database[1], kind), **dict(others)}


def behind_header(pages):
    """A database of these bytes behind a header that is right about their number."""
    head = bytearray(CORPUS[DATABASE][:100])
    size = int.from_bytes(head[16:18], "big")
    count = max(1, -(-(len(pages) + 100) // size))
    head[28:32] = count.to_bytes(4, "big")
    return (bytes(head) + pages).ljust(count * size, b"\0")


DATABASE, NAME = "corpus.sqlite", "schedule.npz"
CLIENT, STALENESS = [[0, 1], [2, 2], [1, 0]], [[0, 0], [1, 0], [2, 1]]
WORK, PRESENT = [[2, 4], [1, 3], [1, 1]], [[True, True], [True, False], [False, True]]
SCHEDULE = make_schedule(CLIENT, STALENESS, WORK, PRESENT).replace(time=np.array([0.5, 1.0, 4.0]))


def one_array(name):
    """The reader of schedules, with damage in one array of an otherwise legal file."""
    with zipfile.ZipFile(io.BytesIO(NPZ[NAME])) as whole:
        arrays = {one: whole.read(one) for one in whole.namelist()}

    def pack(content):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
            for one, data in (arrays | {f"{name}.npy": content}).items():
                made.writestr(one, data)
        return file.getvalue()

    return Reader({NAME: arrays[f"{name}.npy"]}, read_schedule, {NAME: pack}, examples=240)


def read_schedule(folder):
    found = Schedule.load(folder / NAME)
    dtypes = (np.int32, np.int32, np.int32, np.bool_)
    for array, dtype in zip(jax.tree.leaves(found), dtypes, strict=False):
        assert array.dtype == dtype and array.shape == found.client.shape
        assert array.size == 0 or 0 <= array.min() <= array.max()
    assert found.present.sum() == np.count_nonzero(found.present)
    if found.time is not None:
        assert found.time.dtype == np.float64 and found.time.shape == found.client.shape[:1]
    found.check()


CONFIG = run_flags.parse(["x", "--server_lr=0.5"])
FIRST = metrics.first_row({"loss": 0.75, "accuracy": 0.5}, 1.0)
LATER = {"train_loss": 0.25, "train_accuracy": 0.5, "rejected_clients": {"3": 1}}
ROWS = [FIRST, *(FIRST | LATER | {"round": 10 * k, "seconds": 2.0 * k} for k in (1, 2))]
SAVED = {**dataclasses.asdict(CONFIG), "environment": {"devices": 2, "device": "cpu"}}
SETTINGS = {run_config.CONFIG: json.dumps(SAVED).encode()}
RECORD = {metrics.METRICS: b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)}
TRIAL = Trial({"server_lr": "0.5"}, CONFIG)
TRIAL_FILE = f"{results.TRIALS}/server_lr=0.5.json"


def read_rows(folder):
    for row in metrics.read_rows(folder):
        assert isinstance(row, dict) and type(row["round"]) is int


def read_clients(folder):
    name, scores = clients.read(folder)
    assert name and scores.dtype == float and scores.ndim == 1 and len(scores)


def check_config(folder):
    run_config.check(folder, dataclasses.asdict(CONFIG), ("out_dir",))


def read_trial(folder):
    for name, one in results.read(folder, {"server_lr=0.5": TRIAL}).items():
        assert name == one.name and one.status in ("finished", "diverged")
        # What a sweep and a reproduction do with it.
        assert results.line(one) and selection.choices([one]) and selection.scores([one])


def read_table(folder):
    (row,) = summaries.of_folders([folder])
    assert len(row) == 8 and all(isinstance(cell, str) for cell in row.values())


def read_curves(folder):
    ((rows,),) = [line.runs for line in lines.of_folder(folder, "seconds")]
    for name in {"seconds", "round", "train_accuracy", "test_accuracy"} & rows[0].keys():
        assert not np.isinf(curves._column(rows, name)).any()


def draw_curves(folder):
    ((rows,),) = [line.runs for line in lines.of_folder(folder, "seconds")]
    with tempfile.TemporaryDirectory() as elsewhere:
        curves.draw_methods({"a": [rows]}, [Path(elsewhere) / "drawn.png"], "", "seconds")


def read_flag_file(folder):
    legal_config(run_flags.parse(["x", f"--flagfile={folder / 'a.flags'}"]))


def read_sweep_flags(folder):
    for trial in parse_sweep(["x", "--resume", f"--out_dir={folder}"]).trials.values():
        legal_config(trial.config)


def read_presets(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "_FILE", folder / "paper.toml")
        if "fig3_beta" in presets.names():
            presets.trial(presets.preset("fig3_beta", {}), {"server": "cc_fedadam", "server_lr": 1})


PACKAGES = (
    b"Package: a\nMaintainer: A <a@b>\nTag: role::x, use::y\n"
    b"Description-md5: 1\nDescription: short\n\n"
    b"Package: b\nMaintainer: B <a@b>\nTag: role::x\nDescription: short b\n long text\n .\n more\n"
)
LONG = b"Package: a\nDescription-md5: 1\nDescription-en: short\n long text\n .\n end\n\n"
LISTS = {"Packages": PACKAGES, "Translation-en": LONG}


def read_lists(folder):
    for example in debian.read_examples(sorted(folder.iterdir())):
        assert example.split in ("train", "test", "heldout") and example.client >= 0
        assert all(isinstance(word, str) for word in example.title + example.body + example.tags)


IDX = data_files.idx_bytes(np.arange(24).reshape(2, 3, 4))
FASHION = written(data_files.write_fashion)
CIFAR = {n: written(partial(data_files.write_cifar, name=n, records=1)) for n in data_files.CIFAR}
CORPUS = written(corpus.write)
PAGES = {**CORPUS, DATABASE: CORPUS[DATABASE][100:]}
MESSAGE = corpus.post("a loop", "in the loop", "java|rare")
NPZ = written(lambda folder: SCHEDULE.save(folder / NAME))
RESULT = json.dumps(results.made(TRIAL, ROWS)._asdict()).encode()
PRESET = (presets._FILE.parent / "digits.flags").read_bytes()

SWEEP = parse_sweep(["x", "--preset=digits", "--vary=alpha=1,2 seed=0", "--out_dir=a"]).flags

READERS = {
    "IDX": Reader({"numbers.idx": IDX}, read_idx),
    "flags of a sweep": Reader({SWEEP_FILE: json.dumps(SWEEP).encode()}, read_sweep_flags),
    "IDX packed": Reader({"numbers.gz": gzip.compress(IDX, mtime=0)}, read_idx),
    "IDX in gzip": Reader({"numbers.gz": IDX}, read_idx, {"numbers.gz": gzip.compress}),
    "Fashion-MNIST": Reader(FASHION, read_images("fashion_mnist", (28, 28, 1))),
    **{n: Reader(own, read_images(n, (32, 32, 3)), examples=240) for n, own in CIFAR.items()},
    "Stack Overflow": Reader(CORPUS, read_posts, examples=800),
    "Stack Overflow by index": Reader(CORPUS, partial(read_posts, num_clients=1, max_test=1)),
    "Stack Overflow's pages": Reader(PAGES, read_posts, {DATABASE: behind_header}, examples=800),
    "Stack Overflow in xz": Reader(packed(".xz", lzma.FORMAT_XZ), read_posts),
    "Stack Overflow in lzma": Reader(packed(".lzma", lzma.FORMAT_ALONE), read_posts),
    "Stack Overflow's sentences": Reader(CORPUS, read_sentences, examples=400),
    "example in SQLite": Reader(CORPUS | {DATABASE: MESSAGE}, read_posts, {DATABASE: database_of}),
    "schedule": Reader(NPZ, read_schedule, examples=800),
    **{f"schedule's {name}": one_array(name) for name in ("client", "present", "time")},
    "rows": Reader(RECORD, read_rows),
    "clients": Reader(
        {CLIENTS: b"client,samples,test_samples,accuracy\n0,5,2,0.5\n1,4,0,\n"}, read_clients
    ),
    "settings": Reader(SETTINGS, check_config, named="folder"),
    "trial": Reader({TRIAL_FILE: RESULT}, read_trial, examples=800),
    "table": Reader(SETTINGS | RECORD, read_table),
    "curves": Reader(RECORD, read_curves),
    "drawn curves": Reader(RECORD, draw_curves, examples=20),
    "flag file": Reader({"a.flags": PRESET}, read_flag_file, named="nothing"),
    "presets": Reader({"paper.toml": presets._FILE.read_bytes()}, read_presets, named="nothing"),
    "package lists": Reader(LISTS, read_lists, named="nothing"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("share", SHARES)
def test_a_damaged_file_is_read_or_refused(tmp_path, name, share):
    check_reader(READERS[name], tmp_path, share)
