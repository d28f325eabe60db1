"""Rows and folders for the tests of figures."""

import json

from ccfl_jax.runs import metrics
from experiments import plot


def rows(test, train=None, seconds=2):
    return [
        {"round": 10 * k, "client_updates": 50 * k, "samples": 1000 * k, "train_loss": 0.5,
         "test_loss": 0.5, "train_recall_at_5": (train or test)[k], "test_recall_at_5": score,
         "bytes_sent": 300 * k, "bytes_received": 400 * k, "virtual_time": 60.0 * k,
         "seconds": seconds * k}
        for k, score in enumerate(test)
    ]  # fmt: skip


def write_rows(folder, its):
    folder.mkdir(exist_ok=True)
    path = folder / metrics.METRICS
    path.write_text("".join(json.dumps(row) + "\n" for row in its))
    return path


def plotted(folders, *flags):
    return plot.main(["plot", *map(str, folders), *flags])


def line(axes, number=0):
    return axes.get_lines()[number].get_xydata()
