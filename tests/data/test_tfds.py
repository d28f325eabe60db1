"""The TFDS reader, on small data sets in TFDS's own format on disk."""

import io
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ccfl_jax import data as fd
from ccfl_jax.data.readers import tfds as reader
from ccfl_jax.data.readers.cifar import load_cifar

try:
    import tensorflow_datasets as tfds
except ImportError:
    tfds = None

needs_tfds = pytest.mark.skipif(tfds is None, reason="tensorflow-datasets is not installed")
SHAPE = (4, 5, 1)
COUNTS = {"train": 7, "test": 3}


def image(number):
    return np.full(SHAPE, 10 * number, np.uint8)


def as_png(array):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(file, "PNG")
    file.seek(0)
    return file


def make_builder(name, encode):
    """A TFDS data set of COUNTS images; image k has the label k % 3 and the grey level 10 k."""

    def info(self):
        features = {
            "image": tfds.features.Image(shape=SHAPE),
            "label": tfds.features.ClassLabel(num_classes=3),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def generate(self, count):
        for k in range(count):
            yield k, {"image": encode(image(k)), "label": k % 3}

    def splits(self, download_manager):
        return {split: self._generate_examples(count) for split, count in COUNTS.items()}

    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_generate_examples": generate,
        "_split_generators": splits,
        "__module__": __name__,
    }
    return type(name, (tfds.core.GeneratorBasedBuilder,), members)


@pytest.fixture(scope="module")
def prepared():
    return make_builder("CcflTiny", as_png) if tfds else None


@pytest.fixture
def folder(tmp_path, prepared):
    prepared(data_dir=tmp_path).download_and_prepare(file_format="array_record")
    return tmp_path


def assert_is_the_tiny_set(train, test):
    for part, count in ((train, 7), (test, 3)):
        assert part["x"].dtype == np.uint8
        assert part["y"].dtype == np.int32
        # TFDS shuffles while it writes, so the samples are told apart by their grey level.
        numbers = part["x"][:, 0, 0, 0] // 10
        np.testing.assert_array_equal(np.sort(numbers), np.arange(count))
        np.testing.assert_array_equal(part["x"], np.stack([image(k) for k in numbers]))
        np.testing.assert_array_equal(part["y"], numbers % 3)


@needs_tfds
def test_reads_a_prepared_data_set(folder):
    assert list(folder.glob("ccfl_tiny/1.0.0/ccfl_tiny-train.array_record-*"))
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny", folder))
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny:1.0.0", str(folder)))


@needs_tfds
def test_prepares_what_needs_no_network(tmp_path, prepared):
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny", tmp_path))
    assert (tmp_path / "ccfl_tiny/1.0.0/dataset_info.json").exists()


@needs_tfds
def test_reads_without_tensorflow_and_without_the_builders_code(folder):
    trap = folder / "trap" / "tensorflow"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise RuntimeError('tensorflow was imported')")
    # In a new process the builder class does not exist: only the files do.
    script = """
        import sys

        from ccfl_jax.data import load_tfds

        assert "tensorflow_datasets" not in sys.modules
        sys.path.insert(0, sys.argv[2])
        train, test = load_tfds("ccfl_tiny", sys.argv[1])
        assert train["x"].shape == (7, 4, 5, 1) and test["y"].shape == (3,)
        assert "tensorflow" not in sys.modules
    """
    run_python(script, str(folder), str(trap.parent))


def test_everything_else_works_where_tfds_is_not_installed():
    script = """
        import sys

        sys.modules["tensorflow_datasets"] = None
        import ccfl_jax
        from ccfl_jax.data import load_dataset, load_tfds

        for name in ("digits", "synthetic"):
            load_dataset(name)
        try:
            load_tfds("mnist")
        except ImportError as error:
            assert "pip install 'ccfl_jax[tfds]'" in str(error), error
            assert "\\n" not in str(error)
        else:
            raise SystemExit("load_tfds did not complain")
    """
    run_python(script)


def run_python(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def refuse_names(*_, **__):
    raise socket.gaierror(-2, "Name or service not known")


@needs_tfds
def test_without_network_the_error_says_which_files_go_where(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", refuse_names)
    with pytest.raises(FileNotFoundError) as caught:
        fd.load_tfds("fashion_mnist", tmp_path)
    message = str(caught.value)
    for part in (
        "'fashion_mnist' is not prepared",
        "fashion-mnist.s3-website.eu-central-1.amazonaws.com cannot be reached",
        str(tmp_path / "fashion_mnist"),
        "dataset_info.json, features.json and fashion_mnist-{train,test}.array_record-*",
    ):
        assert part in message
    assert "\n" not in message


@needs_tfds
def test_a_name_look_up_that_hangs_is_given_up(tmp_path, monkeypatch):
    released = threading.Event()

    def hang(*_, **__):
        released.wait(60)
        refuse_names()

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(reader, "_PROBE_SECONDS", 0.2)
    try:
        with pytest.raises(FileNotFoundError, match=r"\(no answer in 0\.2 s\)"):
            fd.load_tfds("fashion_mnist", tmp_path)
    finally:
        released.set()


@needs_tfds
def test_preparation_that_needs_a_missing_package_says_what_to_do(tmp_path):
    def needs_a_package(array):
        raise ModuleNotFoundError("No module named 'tensorflow'")

    make_builder("CcflNeedsTensorflow", needs_a_package)
    with pytest.raises(ImportError) as caught:
        fd.load_tfds("ccfl_needs_tensorflow", tmp_path)
    for part in (
        "prepare it elsewhere once",
        str(tmp_path / "ccfl_needs_tensorflow"),
        "tensorflow",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_tfds
def test_a_download_that_fails_says_which_files_go_where(tmp_path):
    def fails(array):
        raise ConnectionError("connection reset\nby peer")

    make_builder("CcflFails", fails)
    with pytest.raises(
        OSError, match=r"\(connection reset\); expected in .*array_record"
    ) as caught:
        fd.load_tfds("ccfl_fails", tmp_path)
    assert str(tmp_path / "ccfl_fails") in str(caught.value)


@needs_tfds
@pytest.mark.parametrize("name", ["ccfl_nothing", "Bad Name", "fashion_mnist:9.9.9", ""])
def test_unknown_names_are_refused_in_one_line(tmp_path, name):
    with pytest.raises(ValueError, match=r"^TFDS [^\n]*: found no data set in [^\n]*$"):
        fd.load_tfds(name, tmp_path)


def shard(folder):
    (path,) = folder.glob("ccfl_tiny/1.0.0/ccfl_tiny-train.array_record-*")
    return path


@needs_tfds
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "flipped"])
def test_damaged_files_are_refused(folder, damage):
    path = shard(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    if damage == "missing":
        path.unlink()
    else:
        cut, empty = content[: len(content) // 2], b""
        path.write_bytes({"cut": cut, "empty": empty, "flipped": content}[damage])
    with pytest.raises(OSError, match=r"'ccfl_tiny': split train in .* is not readable") as caught:
        fd.load_tfds("ccfl_tiny", folder)
    assert "\n" not in str(caught.value)


@needs_tfds
@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('"array_record"', '"tfrecord"', OSError, "not readable as array_record"),
        ('"name": "test"', '"name": "held"', ValueError, r"the splits \['train', .*, legal: with"),
        ('"7"', '"9"', OSError, "split train in .* is not readable"),
        ('"{DATASET}-', '"../{DATASET}-', OSError, "expected files of its folder, found .*"),
        (
            '"{DATASET}-',
            '"/etc/{DATASET}-',
            OSError,
            "expected files of its, found /etc/ccfl_tiny.*",
        ),
        ("{", "", ValueError, "TFDS 'ccfl_tiny': expected a name, found no data set in .*"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(folder, old, new, error, message):
    path = folder / "ccfl_tiny/1.0.0/dataset_info.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(error, match=message):
        fd.load_tfds("ccfl_tiny", folder)


@needs_tfds
def test_samples_that_are_not_as_described_are_refused(folder):
    changes = (
        ("features.json", '"numClasses": "3"', '"numClasses": "2"'),
        ("dataset_info.json", '"featureKey": "label"', '"featureKey": "x"'),
    )
    folders = []
    for number, (file, old, new) in enumerate(changes):
        folders.append(shutil.copytree(folder / "ccfl_tiny", folder / str(number) / "ccfl_tiny"))
        path = folders[-1] / "1.0.0" / file
        path.write_text(path.read_text().replace(old, new))
    script = """
        import sys
        from ccfl_jax.data import load_tfds

        messages = (
            "found label 2 (2 times), legal: 0 to 1",
            "found the features ['image', 'label'], legal: with ('image', 'x')",
        )
        for folder, message in zip(sys.argv[1:], messages, strict=True):
            try:
                load_tfds("ccfl_tiny", folder)
            except ValueError as error:
                assert message in str(error), error
            else:
                raise SystemExit("accepted")
    """
    # In a new process the files, not the builder's code, describe the samples.
    run_python(script, *(str(path.parent) for path in folders))


def write_cifar(folder, name):
    """The binary version's files with four records each, CIFAR-100's training file with twenty."""
    labels, files = (1, 6) if name == "cifar10" else (2, 2)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    names = names if files == 6 else ["train.bin", "test.bin"]
    folder.mkdir(parents=True)
    for number, file in enumerate(names):
        count = 20 if file == "train.bin" else 4
        rows = np.random.default_rng([number]).integers(0, 256, (count, labels + 3072))
        rows[:, :labels] %= 10
        (folder / file).write_bytes(rows.astype(np.uint8).tobytes())
    for file, count in (
        ("batches.meta", 10),
        ("coarse_label_names", 20),
        ("fine_label_names", 100),
    ):
        (folder / f"{file}.txt").write_text("\n".join(map(str, range(count))))


@needs_tfds
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_from_tfds_is_cifar_from_its_files(tmp_path, monkeypatch, name):
    """TFDS reads the same files by its own code; it opens and encodes without TensorFlow here."""
    from tensorflow_datasets.image_classification import cifar

    digits = name.removeprefix("cifar")
    folder = tmp_path / ("cifar-10-batches-bin" if digits == "10" else "cifar-100-binary")
    write_cifar(folder, name)
    opener = SimpleNamespace(io=SimpleNamespace(gfile=SimpleNamespace(GFile=open)))
    read = cifar._load_data

    def read_as_png(path, count=1):
        return ((labels, as_png(np.ascontiguousarray(x))) for labels, x in read(path, count))

    monkeypatch.setattr(cifar, "tf", opener)
    monkeypatch.setattr(cifar, "_load_data", read_as_png)
    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda self, url: str(tmp_path)
    )
    builder = tfds.builder(name, data_dir=tmp_path / "tfds")
    builder.download_and_prepare(file_format="array_record")

    def rows(part):
        return sorted(zip(part["y"], map(bytes, part["x"]), strict=True))  # TFDS shuffles

    for ours, theirs in zip(
        load_cifar(name, tmp_path), fd.load_tfds(name, tmp_path / "tfds"), strict=True
    ):
        assert ours["x"].shape == theirs["x"].shape and ours["y"].dtype == theirs["y"].dtype
        assert rows(ours) == rows(theirs)
