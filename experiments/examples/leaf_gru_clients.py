"""What one writes in a notebook after `leaf_gru.sh`: the best model, and every client's score.

python experiments/examples/leaf_gru_clients.py RUN FOLDER
"""

import sys

import numpy as np

import ccfl_jax as ccfl

run = ccfl.load_run(sys.argv[1])
_, test, _ = ccfl.data.load_leaf(sys.argv[2])
best = max(run.rows, key=lambda row: row["test_accuracy"])
print(f"best: round {best['round']}, {best['virtual_time']:.0f} s, {best['test_accuracy']:.3f}")

model = run.params("best")
scores = ccfl.evaluate(run.task, model, {"x": test["x"], "y": test["y"]})
assert np.isclose(scores["accuracy"], best["test_accuracy"])

# The users of the test files, each with its own samples.
users = ccfl.partition_natural(test["client"])
data = ccfl.FederatedData.from_indices({"x": test["x"], "y": test["y"]}, users)
accuracy = ccfl.evaluate_clients(run.task, model, data)["accuracy"]
print("worst, median and best user:", *np.round(np.quantile(accuracy, [0, 0.5, 1]), 3))
print("likeliest next character:", run.predict(test["x"][:1], "best")[0, -1].argmax())
