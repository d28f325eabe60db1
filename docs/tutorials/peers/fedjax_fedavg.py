import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x, y = x.astype(np.float32) / 16, y.astype(np.int32)
rows = np.split(np.arange(1450), np.cumsum([50, 100, 100, 200, 200, 400]))
clients = {b"%d" % k: {"x": x[own], "y": y[own]} for k, own in enumerate(rows)}
data = fedjax.InMemoryFederatedData(clients)


def loss(params, batch, rng):
    scores = jax.nn.log_softmax(batch["x"] @ params["w"] + params["b"])
    return -scores[jnp.arange(len(batch["y"])), batch["y"]].mean()


# Batches run on over ends of epochs: in each step every sample comes equally often.
batches = fedjax.ShuffleRepeatBatchHParams(400, num_epochs=None, num_steps=2)
sgd = fedjax.optimizers.sgd
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss), sgd(0.5), sgd(1.0), batches
)
state = algorithm.init({"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)})
for t in range(20):
    keys = jax.random.split(jax.random.PRNGKey(t), len(clients))
    visits = zip(data.clients(), keys, strict=True)
    state, _ = algorithm.apply(state, [(*client, key) for client, key in visits])
np.savez("fedjax.npz", **state.params)
