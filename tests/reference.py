"""The algorithm in plain NumPy: float64, loops and lists, no JAX. What the compiled code is held
to.

It reads like the paper's Algorithms 2 and 3. Models are dicts of arrays; the batches of every
client visit are given as lists of row numbers, so that both sides see the same samples.
"""

import numpy as np


def cc_local(start, batches, gradient, local_lr, divisor):
    """Algorithm 3: one local SGD step per batch; the upload is (start - end) / divisor."""
    model = {name: value.copy() for name, value in start.items()}
    for rows in batches:
        step = gradient(model, rows)
        for name in model:
            model[name] = model[name] - local_lr * step[name]
    return {name: (start[name] - model[name]) / divisor for name in model}


def server_init(model, initial_accumulator=0.0):
    """m, v and v-hat before round 0."""
    return {
        "m": {name: np.zeros_like(value) for name, value in model.items()},
        "v": {name: np.zeros_like(value) for name, value in model.items()},
        "v_hat": {name: np.full_like(value, initial_accumulator) for name, value in model.items()},
    }


def server_step(rule, model, state, delta, lr, b1=0.9, b2=0.99, eps=1e-3):
    """The server's part of Algorithm 2; changes `state` and returns the next model."""
    following = {}
    for name, d in delta.items():
        if rule == "sgd":
            following[name] = model[name] - lr * d
            continue
        m = state["m"][name] = (1 - b1) * d + b1 * state["m"][name]
        if rule == "avgm":
            following[name] = model[name] - lr * m
            continue
        if rule == "adagrad":
            state["v_hat"][name] = state["v_hat"][name] + d**2
        elif rule == "adam":
            state["v_hat"][name] = (1 - b2) * d**2 + b2 * state["v_hat"][name]
        elif rule == "ams":
            state["v"][name] = (1 - b2) * d**2 + b2 * state["v"][name]
            state["v_hat"][name] = np.maximum(state["v_hat"][name], state["v"][name])
        following[name] = model[name] - lr * m / (np.sqrt(state["v_hat"][name]) + eps)
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
            batches = visit_batches(t, slot)

            def client_gradient(x, rows, client=client):
                return gradient(client, x, rows)

            uploads.append(cc_local(start, batches, client_gradient, local_lr, divisor(t, slot)))
        if not uploads:
            models.append(models[t])
            continue
        delta = {name: sum(u[name] for u in uploads) / len(uploads) for name in model}
        models.append(server_step(rule, models[t], state, delta, **server))
    return models
