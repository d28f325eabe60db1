"""Small files of the image data sets, in their published forms; the views of an image."""

import gzip

import numpy as np

CIFAR = {
    "cifar10": [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"],
    "cifar100": ["train.bin", "test.bin"],
}
CIFAR_FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}


def write_cifar(folder, name, records=2):
    """Files of `records` test images (CIFAR-10: and as many in each batch) of noise."""
    folder.mkdir(exist_ok=True)
    for number, file in enumerate(CIFAR[name]):
        count = 5 * records if file == "train.bin" else records
        rng = np.random.default_rng([number])
        rows = rng.integers(0, 256, (count, LABEL_BYTES[name] + 3072)).astype(np.uint8)
        rows[:, : LABEL_BYTES[name]] %= 10
        (folder / file).write_bytes(rows.tobytes())
    return folder


FASHION = {
    "train-images-idx3-ubyte": ("x", 12),
    "train-labels-idx1-ubyte": ("y", 12),
    "t10k-images-idx3-ubyte": ("x", 4),
    "t10k-labels-idx1-ubyte": ("y", 4),
}


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def fashion_images(n):
    return np.random.default_rng(n).integers(0, 256, (n, 28, 28)).astype(np.uint8)


def write_fashion(folder, suffix=""):
    for name, (kind, n) in FASHION.items():
        content = idx_bytes(fashion_images(n) if kind == "x" else np.arange(n) % 10)
        content = gzip.compress(content, mtime=0) if suffix else content
        (folder / (name + suffix)).write_bytes(content)


def legal_views(image, padding):
    """`[views, h, w, c]`: each shift by up to `padding` pixels, as it is and mirrored."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    shifts = [(row, column) for row in range(2 * padding + 1) for column in range(2 * padding + 1)]
    windows = [padded[row : row + height, column : column + width] for row, column in shifts]
    return np.array([view for window in windows for view in (window, window[:, ::-1])])
