"""Samples in columns: Parquet files, and data sets saved by Hugging Face's `datasets`."""

import io
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from reprlib import repr as shortened
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ccfl_jax.checks import naming, one_line
from ccfl_jax.data.readers import samples
from ccfl_jax.io.files import as_json

_CLIENT = "client"  # this column may be missing, as long as no other is named


class _Part(NamedTuple):
    """The samples of a file, or of several: "x", "y", and the ids of their clients or None."""

    x: np.ndarray
    y: np.ndarray
    ids: list | None


def load_parquet(
    folder: str | Path, x: str = "x", y: str = "y", client: str = _CLIENT
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Loads a user's own data from the files `train*.parquet` and `test*.parquet` of a folder.

    A column of inputs holds numbers, or lists of numbers of one shape, nested for images, or images
    as Hugging Face stores them, PNG or JPEG in grey or RGB. Dtypes are as `samples.inputs` and
    `labels` say. The clients are those of the training rows, numbered in the order of their ids.

    Args:
        folder: of the files.
        x: name of the column of inputs.
        y: of labels, integers from 0.
        client: of clients, integers or texts; without a column `client` there are none.

    Returns:
        train, test: "x" `[N, ...]`, "y" int32 `[N]` and perhaps "client" int32 `[N]`, in test -1
        for those who are none of training.
        num_classes: 1 + the largest label.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: a part has no file.
        OSError: a file cannot be read.
        ValueError: in one line with the file, the column and the row: it is no such file, or lacks
            a column; a value is missing, rows have several shapes, numbers are not finite, labels
            no integers from 0.

    Examples:
        >>> import pathlib, pyarrow, pyarrow.parquet
        >>> pathlib.Path("tables").mkdir(exist_ok=True)
        >>> columns = {"pixels": [[0.0, 1.0], [0.5, 0.5]], "label": [1, 0], "writer": ["b", "a"]}
        >>> table = pyarrow.table(columns)
        >>> for name in ("train", "test"):
        ...     pyarrow.parquet.write_table(table, f"tables/{name}.parquet")

        >>> train, test, num_classes = ccfl.data.load_parquet("tables", "pixels", "label", "writer")
        >>> train["x"].shape, train["client"].tolist()  # a is the client 0
        ((2, 2), [1, 0])
    """
    folder = Path(folder)
    found = sorted(path for path in folder.glob("*.parquet") if path.is_file())
    files = {p: [path for path in found if path.name.startswith(p)] for p in ("train", "test")}
    for part, paths in files.items():
        if not paths:
            raise FileNotFoundError(f"Parquet: expected {part}*.parquet in {folder}, found none")
    return _load(folder, files, _parquet_table, (x, y, client))


def load_huggingface(
    folder: str | Path, x: str = "x", y: str = "y", client: str = _CLIENT
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Loads a `DatasetDict` with the splits train and test, which `save_to_disk(folder)` wrote.

    Its Arrow files are read without the package `datasets`. All else is as in `load_parquet`.

    Examples:
        Of a folder that `save_to_disk` wrote:

        >>> train, test, num_classes = ccfl.data.load_huggingface(
        ...     "dataset", "pixels", "label", "writer"
        ... )
        >>> train["x"].shape, train["client"].tolist()  # a is the client 0
        ((2, 2), [1, 0])
    """
    folder = Path(folder)
    files = {part: _saved_files(folder / part) for part in ("train", "test")}
    return _load(folder, files, _saved_table, (x, y, client))


def _saved_files(folder: Path) -> list[Path]:
    """The files of a split, in order."""
    state = folder / "state.json"
    if not state.is_file():
        raise FileNotFoundError(f"save_to_disk: expected {state}, found none")
    found = as_json(state.read_bytes(), state)
    listed = found.get("_data_files") if isinstance(found, dict) else None
    paths = []
    for one in listed if isinstance(listed, list) and listed else [None]:
        name = one.get("filename") if isinstance(one, dict) else None
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            raise ValueError(f"{state}: expected names of _data_files, found {shortened(name)}")
        if not (folder / name).is_file():
            raise ValueError(f"{state}: expected the files of _data_files, found no {name}")
        paths.append(folder / name)
    return paths


def _load(
    folder: Path,
    files: dict[str, list[Path]],
    table: Callable[[ModuleType, Path], Any],
    columns: tuple[str, str, str],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    arrow = _pyarrow()
    train, test = (
        _joined([_part(arrow, path, table, columns) for path in files[part]], files[part])
        for part in ("train", "test")
    )
    own, held = ({"x": part.x, "y": part.y} for part in (train, test))
    with naming(folder):
        samples.check_alike("test", own, held)
        if train.ids is not None:
            numbers = samples.client_numbers(columns[2], train.ids, len(train.y))
            own["client"] = np.array([numbers[one] for one in train.ids], np.int32)
            if test.ids is not None:
                held["client"] = np.array([numbers.get(one, -1) for one in test.ids], np.int32)
        return own, held, samples.count_classes(columns[1], own, held)


def _pyarrow() -> ModuleType:
    try:
        for name in ("pyarrow.compute", "pyarrow.parquet"):
            import_module(name)
    except ImportError as error:
        raise ImportError(
            f"files of columns: expected pyarrow (pip install 'ccfl_jax[arrow]'), found {error}"
        ) from error
    return import_module("pyarrow")


def _parquet_table(arrow: ModuleType, path: Path) -> Any:
    return arrow.parquet.ParquetFile(path).read()


def _saved_table(arrow: ModuleType, path: Path) -> Any:
    return arrow.ipc.open_stream(path.read_bytes()).read_all()


def _part(arrow: ModuleType, path: Path, table: Callable, columns: tuple[str, str, str]) -> _Part:
    """The samples of one file."""
    with naming(path):
        try:
            found = table(arrow, path)
            found.validate(full=True)
        except Exception as error:  # damaged files raise many kinds
            reason = one_line(str(error)) or type(error).__name__
            raise ValueError(f"expected a table of columns, found {reason}") from None
        names = found.column_names
        x, y, client = columns
        wanted = [x, y] if client == _CLIENT and client not in names else [x, y, client]
        if any(names.count(name) != 1 for name in wanted):
            raise ValueError(f"expected columns {', '.join(wanted)}, found {shortened(names)}")
        inputs, labels = (_array(arrow, name, found.column(name)) for name in (x, y))
        inputs = samples.inputs(x, inputs)
        labels = samples.labels(y, labels, len(inputs))
        ids = found.column(client).to_pylist() if client in wanted else None
        return _Part(inputs, labels, ids)


def _joined(parts: list[_Part], paths: list[Path]) -> _Part:
    """The samples of all files of a part."""
    for part, path in zip(parts, paths, strict=True):
        with naming(path):
            samples.check_alike("file", {"x": parts[0].x}, {"x": part.x})
            if (part.ids is None) != (parts[0].ids is None):
                raise ValueError("expected clients in all files or in none, found both")
    x, y = (np.concatenate(arrays) for arrays in ([p.x for p in parts], [p.y for p in parts]))
    ids = None if parts[0].ids is None else [own for part in parts for own in part.ids or []]
    return _Part(x, y, ids)


def _array(arrow: ModuleType, name: str, column: Any) -> np.ndarray:
    """The numbers of a column `[rows, ...]`, one axis for each level of its lists."""
    types, compute, shape = arrow.types, arrow.compute, [len(column)]
    values: Any = arrow.concat_arrays(column.chunks) if len(column) else []
    while True:
        if not len(values):
            raise ValueError(f"{name}: expected numbers, found none")
        if isinstance(values.type, arrow.BaseExtensionType):
            values = values.storage
        inside = len(values) // shape[0]
        _refuse(arrow, name, compute.is_null(values), inside, "a value", "none")
        of = values.type
        if not (types.is_list(of) or types.is_large_list(of) or types.is_fixed_size_list(of)):
            break
        lengths = compute.list_value_length(values)
        other = compute.not_equal(lengths, lengths[0])
        _refuse(arrow, name, other, inside, "rows of one shape", "another")
        shape.append(lengths[0].as_py())
        values = values.flatten()
    if types.is_struct(of) and len(shape) == 1:
        return _images(name, values)
    if not types.is_primitive(of) or types.is_temporal(of):
        raise ValueError(f"{name}: expected numbers, found {one_line(str(of))}")
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _refuse(
    arrow: ModuleType, name: str, wrong: Any, inside: int, expected: str, found: str
) -> None:
    """Raises ValueError with the first row where bools are true; a row has `inside` of them."""
    place = arrow.compute.index(wrong, True).as_py()
    if place >= 0:
        raise ValueError(f"{name}: expected {expected}, found {found} in row {place // inside}")


def _images(name: str, values: Any) -> np.ndarray:
    """Images uint8 `[rows, h, w]` or `[rows, h, w, 3]` of encoded ones."""
    from PIL import Image

    found = []
    for row, stored in enumerate(values.to_pylist()):
        content = stored.get("bytes")
        try:
            with Image.open(io.BytesIO(content or b""), formats=("PNG", "JPEG")) as image:
                mode, pixels = image.mode, np.asarray(image)
        except Exception as error:  # damaged images raise many kinds
            reason = one_line(str(error)) or type(error).__name__
            raise ValueError(f"{name}: expected an image, found {reason} in row {row}") from None
        if mode not in ("L", "RGB") or (found and pixels.shape != found[0].shape):
            raise ValueError(
                f"{name}: expected images L or RGB of one size, found {mode} {pixels.shape} in row "
                f"{row}"
            )
        found.append(pixels)
    return np.stack(found)
