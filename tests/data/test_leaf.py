"""data/readers/leaf.py, characters.py: LEAF's files as its scripts write them, and every fault."""

import json

import numpy as np
import pytest
from refusal import refused

from ccfl_jax.data import load_leaf
from ccfl_jax.data.readers import characters

RNG = np.random.default_rng(0)


def part(users, **more):
    """A file of users: name -> (x, y)."""
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    return {"users": [*users], "num_samples": counts, "user_data": data, **more}


def write(folder, train, test):
    """Parts of several files each, named as LEAF's."""
    for name, files in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k, file in enumerate(files):
            path = folder / name / f"all_data_{k}_niid_0_keep_0_{name}_9.json"
            path.write_text(file if isinstance(file, str) else json.dumps(file))
    return folder


def images(rows, label):
    return RNG.random((rows, 784)).tolist(), [label] * rows


def sentence(start, length=80):
    return (start + " To be, or not to be: that is the question, whether it is nobler" * 2)[:length]


def tweet(text):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "ann", text, "training"]


FEMNIST = {"f1_2": images(3, 61), "f0_1": images(2, 4)}
PLAYS = {"HAMLET_HORATIO": ([sentence("\n"), sentence("a")], [" ", "\r"]),
         "HAMLET_GHOST": ([sentence("é}")], ["z"])}  # fmt: skip
TWEETS = {"ann": ([tweet("so so good, @ann's day!"), tweet("a b")], [1, 0]),
          "bob": ([tweet("so b")], [0])}  # fmt: skip


def test_femnist_of_several_files_with_users_by_their_names(tmp_path):
    """f0_1 is client 0 though it comes second; f9, a user of the test part alone, is none."""
    both = [part({name: own}) for name, own in FEMNIST.items()]
    test = {"f9": images(1, 5), "f1_2": images(2, 0)}
    hierarchies = part(test, hierarchies=[["a"], ["b"]])
    train, test_set, classes = load_leaf(write(tmp_path, both, [hierarchies]))
    assert classes == 62 and train["x"].dtype == np.float32
    assert train["x"].shape == (5, 28, 28, 1) and test_set["x"].shape == (3, 28, 28, 1)
    expected = np.array(FEMNIST["f0_1"][0] + FEMNIST["f1_2"][0], np.float32)
    np.testing.assert_array_equal(train["x"].reshape(5, 784), expected)
    assert train["y"].tolist() == [4, 4, 61, 61, 61] and train["client"].tolist() == [0, 0, 1, 1, 1]
    assert test_set["client"].tolist() == [1, 1, -1] and test_set["y"].tolist() == [0, 0, 5]
    assert all(own[n].dtype == np.int32 for own in (train, test_set) for n in ("y", "client"))


def test_rows_of_integers_are_numbers_too_and_users_without_samples_may_stay(tmp_path):
    """Synthetic's labels are whole floats; LEAF leaves users there whom it has dropped."""
    users = {"a": ([[1, 2], [3, 4]], [0.0, 1.0]), "b": ([[0.5, 1.5]], [2])}
    left = part(users)
    left["user_data"]["dropped"] = {"x": [], "y": []}
    test = part({"a": ([[1, 1.5]], [0]), "b": ([], [])})
    train, test, classes = load_leaf(write(tmp_path, [left], [test]))
    assert classes == 3 and train["x"].tolist() == [[1, 2], [3, 4], [0.5, 1.5]]
    assert train["x"].dtype == np.float32 and len(test["y"]) == 1


def test_the_characters_have_the_numbers_of_tensorflow_federated():
    """Those that its own tests state: 'star wars', and that 86 is the last, a carriage return."""
    assert characters.character_ids(["star", " wars"]).tolist() == [
        25,
        5,
        64,
        46,
        14,
        26,
        64,
        46,
        25,
    ]
    assert (
        characters.character_ids(["abc\r~", "é€\U0001f600\ud800"]).tolist()
        == [64, 42, 21, 86] + [87] * 5
    )
    assert (characters.PADDING, characters.UNKNOWN, characters.BEGIN, characters.END) == (
        0,
        87,
        88,
        89,
    )
    assert characters.NUM_IDS == 90
    known = characters.character_ids([chr(code) for code in range(256)])
    assert sorted(known[known != 87]) == [*range(1, 87)]


def test_shakespeare(tmp_path):
    train, test, classes = load_leaf(write(tmp_path, [part(PLAYS)], [part(PLAYS)]))
    assert classes == 90 and train["x"].shape == (3, 80) and train["x"].dtype == np.int32
    assert train["client"].tolist() == [0, 1, 1] == test["client"].tolist()
    ghost, (first, second) = PLAYS["HAMLET_GHOST"][0][0], PLAYS["HAMLET_HORATIO"][0]
    for row, text in zip(train["x"], (ghost, first, second), strict=True):
        assert row.tolist() == [int(characters.character_ids([c])[0]) for c in text]
    assert train["x"][0, :2].tolist() == [87, 87]
    assert train["y"].tolist() == characters.character_ids(["z \r"]).tolist()


def test_tweets_are_ids_of_the_words_of_training(tmp_path):
    """so is the word of three, b of two, then in their order ! , @... no: '!', ',', a, ann's, day,
    good, of one each; a word of the test part alone is -2, and the 26th is cut off."""
    test = {"eve": ([tweet("so new good? " + "b " * 30)], [1])}
    train, held, classes = load_leaf(write(tmp_path, [part(TWEETS)], [part(test)]))
    words = {"so": 0, "b": 1, "!": 2, ",": 3, "a": 4, "ann's": 5, "day": 6, "good": 7}
    texts = [["so", "so", "good", ",", "ann's", "day", "!"], ["a", "b"], ["so", "b"]]
    assert classes == 2 and train["x"].shape == (3, 25)
    for row, text in zip(train["x"].tolist(), texts, strict=True):
        assert row == [words[word] for word in text] + [-1] * (25 - len(text))
    assert held["x"].tolist() == [[0, -2, 7, -2] + [1] * 21] and held["client"].tolist() == [-1]
    assert train["y"].tolist() == [1, 0, 0]


def changed(**fields):
    return part(FEMNIST) | fields


def user(x, y):
    return part(FEMNIST | {"bob": (x, y)})


NUMBERS = [[0.5] * 784]
FAULTS = {
    "no object": ([1], "users: expected a list, found None"),
    "cut": ('{"users": ["a"', "expected JSON, found ..."),
    "nan": ('{"users": NaN}', "users: expected a list, found nan"),
    "a count that is nan": (changed(num_samples=[float("nan"), 2]), "user 'f1_2': expected nan "
                            "samples, as in num_samples, found 3 of x and 3 of y"),
    "a number that is nan": (user([[0.5] * 784, [0.5] * 783 + [float("nan")]], [1, 1]),
                             "user 'bob': x: expected finite numbers of float32, found nan ...1"),
    "a label that is nan": (user(NUMBERS, [float("nan")]),
                            "user 'bob': y: expected integers from 0, found nan in row 0"),
    "a user's data twice": ('{"users": ["a"], "num_samples": [1], "user_data": {"a": 1, "a": 2}}',
                            "expected each name once, found 'a' again"),
    "no users": ({"num_samples": [], "user_data": {}}, "users: expected a list, found None"),
    "no counts": (changed(num_samples=None), "num_samples: expected a list, found None"),
    "no data": (changed(user_data=[]), "user_data: expected a dict, found []"),
    "too few counts": (changed(num_samples=[3]),
                       "users: expected texts, as many as num_samples, 1, found 2"),
    "users that are no texts": (changed(users=[1, 2]), "users: expected texts, ..., found 2"),
    "another count": (changed(num_samples=[3, 4]), "user 'f0_1': expected 4 samples, as in "
                      "num_samples, found 2 of x and 2 of y"),
    "a count that is none": (changed(num_samples=["3", 2]), "user 'f1_2': expected '3' samples, as "
                             "in num_samples, found 3 of x and 3 of y"),
    "fewer labels": (user(NUMBERS * 2, [1]), "user 'bob': expected 1 samples, as in num_samples, "
                     "found 2 of x and 1 of y"),
    "a user without data": (changed(users=["f1_2", "f0_1", "x"], num_samples=[3, 2, 1]),
                            "user 'x': expected lists x and y, found no such"),
    "data without a user": (changed(users=["f1_2"], num_samples=[3]),
                            "user_data: expected those of users, found 'f0_1' too"),
    "a user twice": (changed(users=["f1_2", "f1_2"], num_samples=[3, 3],
                             user_data={"f1_2": part(FEMNIST)["user_data"]["f1_2"]}),
                     "user 'f1_2': expected once in ..., found again"),
    "no samples": (user([], []), "user 'bob': expected a sample at least, found none"),
    "rows of other lengths": (user([[0.5] * 784, [0.5] * 783], [1, 1]),
                              "user 'bob': x: expected rows of one shape, found another in row 1"),
    "other lengths than before": (user([[0.5] * 3], [1]), "user 'bob': expected samples float32 "
                                  "[28, 28, 1], as before, found float32 [3]"),
    "a number that is infinite": (json.dumps(user([[0.5] * 784, [0.25] * 784], [1, 1])).replace(
        "0.25]", "1e999]"), "user 'bob': x: expected finite numbers of float32, found inf ..."),
    "a text among numbers": (user([["a"] * 784], [1]), "user 'bob': expected 6 texts, as of "
                             "Sent140, found [...] in row 0"),
    "null": (user([[None] * 784], [1]), "user 'bob': x: expected numbers [N, ...], found object "
             "[1, 784]"),
    "a label that is none": (user(NUMBERS, [0.5]),
                             "user 'bob': y: expected integers from 0, found 0.5 in row 0"),
    "a negative label": (user(NUMBERS * 2, [1, -1]),
                         "user 'bob': y: expected integers from 0, found -1 in row 1"),
    "a label as a text": (user(NUMBERS, ["a"]),
                          "user 'bob': y: expected one label for each of 1 rows, found <U1 [1]"),
    "a long label": (part({"a": ([sentence("")], ["ab"])}),
                     "user 'a': expected 80 characters and the next, found '...' and 'ab' ..."),
    "a short text": (part({"a": ([sentence(""), "short"], ["a", "b"])}), "user 'a': expected 80 "
                     "characters and the next, found 'short' and 'b' in row 1"),
    "texts with numbers": (part({"a": ([sentence("")], [0])}), "user 'a': expected 80 characters "
                           "and the next, found '...' and 0 in row 0"),
    "a tweet without a field": (part({"a": ([tweet("a"), tweet("a")[:5]], [0, 1])}),
                                "user 'a': expected 6 texts, as of Sent140, found [...] in row 1"),
    "a third feeling": (part({"a": ([tweet("a")], [2])}),
                        "user 'a': y: expected integers from 0 to 1, found 2 in row 0"),
    "texts beside numbers": (user([sentence("")], ["a"]), "user 'bob': expected samples float32 "
                             "[28, 28, 1], as before, found int32 [80]"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named_with_file_user_and_row(tmp_path, name):
    file, message = FAULTS[name]
    write(tmp_path, [file], [part(FEMNIST)])
    path = tmp_path / "train/all_data_0_niid_0_keep_0_train_9.json"
    refused(f"{path}: {message}", load_leaf, tmp_path)


def test_faults_of_a_folder(tmp_path):
    message = f"LEAF: expected .json files in {tmp_path / 'train'}, found none"
    refused(message, load_leaf, tmp_path, kind=FileNotFoundError)
    one = part({"a": FEMNIST["f0_1"]})
    write(tmp_path / "b", [one, one], [one])
    refused(f"...train_9.json: user 'a': expected once in {tmp_path}/b/train, found again",
            load_leaf, tmp_path / "b")  # fmt: skip
    write(tmp_path / "c", [part(FEMNIST)], [part(PLAYS)])
    refused(f"{tmp_path}/c: test: expected samples like those of training, float32 [28, 28, 1], "
            "found int32 [80]", load_leaf, tmp_path / "c")  # fmt: skip
    write(tmp_path / "d", [part(FEMNIST)], [part({"a": ([], [])})])
    refused(f"{tmp_path}/d/test: expected a user with samples, found none", load_leaf,
            tmp_path / "d")  # fmt: skip
    write(tmp_path / "e", [part({"a": images(2, 1000)})], [part({"a": images(1, 0)})])
    refused(f"{tmp_path}/e: y: expected labels below 1000, found 1000", load_leaf,
            tmp_path / "e")  # fmt: skip
