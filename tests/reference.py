"""The algorithm in plain NumPy: float64, loops and lists. What the compiled code is held to.

It reads like the paper's Algorithms 2 and 3. Models are dicts of arrays; the batches of every
client visit are given as lists of row numbers, so that both sides see the same samples.
"""

from functools import partial

import numpy as np


def cc_local(start, batches, gradient, local_lr, divisor):
    """Algorithm 3: one local SGD step per batch; the upload is (start - end) / divisor."""
    model = start
    for rows in batches:
        step = gradient(model, rows)
        model = {name: model[name] - local_lr * step[name] for name in model}
    return {name: (start[name] - model[name]) / divisor for name in model}


def server_init(model):
    """m, v and v-hat before round 0."""
    zeros = {name: np.zeros_like(value) for name, value in model.items()}
    return {"m": zeros, "v": zeros.copy(), "v_hat": zeros.copy()}


def server_step(rule, model, state, delta, lr, b1=0.9, b2=0.99, eps=1e-3):
    """The server's part of Algorithm 2; changes `state` and returns the next model."""
    following = {}
    for name, d in delta.items():
        m, v, v_hat = (state[moment][name] for moment in ("m", "v", "v_hat"))
        m = (1 - b1) * d + b1 * m
        v = (1 - b2) * d**2 + b2 * v
        v_hat = {"adagrad": v_hat + d**2, "ams": np.maximum(v_hat, v)}.get(rule, v)
        step = {"sgd": d, "avgm": m}.get(rule, m / (np.sqrt(v_hat) + eps))
        following[name] = model[name] - lr * step
        state["m"][name], state["v"][name], state["v_hat"][name] = m, v, v_hat
    return following


def simulate(rule, model, schedule, visit_batches, gradient, local_lr, divisor, **server):
    """Algorithm 2 over a schedule; returns the list x_0, x_1, ..., x_T.

    `visit_batches(t, slot)` lists the batches of a slot, `divisor(t, slot)` its upload's divisor,
    `gradient(client, model, rows)` the mean gradient of one batch.
    """
    models, state = [model], server_init(model)
    for t in range(schedule.num_rounds):
        uploads = []
        for slot, client in enumerate(schedule.client[t]):
            if not schedule.present[t][slot] or schedule.work[t][slot] == 0:
                continue
            start = models[t - schedule.staleness[t][slot]]
            of_client = partial(gradient, client)
            batches = visit_batches(t, slot)
            uploads.append(cc_local(start, batches, of_client, local_lr, divisor(t, slot)))
        if uploads:
            delta = {name: sum(u[name] for u in uploads) / len(uploads) for name in model}
            models.append(server_step(rule, models[t], state, delta, **server))
        else:
            models.append(models[t])
    return models
