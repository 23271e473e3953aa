# Writes recorded_reuters.h: two small files with the structure of Keras' reuters.npz, and what keras.datasets.reuters'
# load_data() makes of them, by NumPy. Run it with a Python that has NumPy:
#   python tests/data/recorded_reuters.py > tests/data/recorded_reuters.h && clang-format -i tests/data/recorded_reuters.h
# Given a path, it writes only a file with 300 articles there, and prints load_data()'s articles as JSON.
import io
import json
import pickle
import sys
import zipfile

import numpy as np


def load_data(xs, labels, num_words=None, skip_top=0, maxlen=None, test_split=0.2, seed=113, start_char=1, oov_char=2,
              index_from=3):
    """The steps of keras/src/datasets/reuters.py, without its download."""
    rng = np.random.RandomState(seed)
    indices = np.arange(len(xs))
    rng.shuffle(indices)
    xs = xs[indices]
    labels = labels[indices]
    if start_char is not None:
        xs = [[start_char] + [w + index_from for w in x] for x in xs]
    elif index_from:
        xs = [[w + index_from for w in x] for x in xs]
    if maxlen:
        kept = [(x, y) for x, y in zip(xs, labels) if len(x) < maxlen]
        xs, labels = [x for x, _ in kept], [y for _, y in kept]
    if not num_words:
        num_words = max([max(x) for x in xs])
    if oov_char is not None:
        xs = [[w if skip_top <= w < num_words else oov_char for w in x] for x in xs]
    else:
        xs = [[w for w in x if skip_top <= w < num_words] for x in xs]
    idx = int(len(xs) * (1 - test_split))
    return (xs[:idx], labels[:idx]), (xs[idx:], labels[idx:])


def articles(count):
    rng = np.random.RandomState(5)
    xs = np.empty(count, dtype=object)
    for i in range(count):
        xs[i] = [int(word) for word in rng.randint(1, 70000 if i % 3 == 2 else 400 if i % 3 else 30, size=3 + i % 7)]
    return xs, rng.randint(0, 46, size=count)


def save(file, xs, ys, compressed):
    (np.savez_compressed if compressed else np.savez)(file, x=xs, y=ys)


def save_as_numpy_1(file, xs, ys):
    """As older versions of NumPy: protocol 2, the module's former name; packed."""
    pickled = pickle.dumps(xs, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (%d,), }" % len(xs)
    header += b" " * (-(len(header) + 11) % 16) + b"\n"
    x = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pickled
    y = io.BytesIO()
    np.save(y, ys)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", y.getvalue())
        archive.writestr("x.npy", x)


def flat(xs):
    return ", ".join("{" + ", ".join(str(int(w)) for w in x) + "}" for x in xs)


def print_split(name, split):
    (x_train, y_train), (x_test, y_test) = split
    print("inline const RecordedReuters %s{{%s}, {%s}, {%s}, {%s}};" % (
        name, flat(x_train), ", ".join(str(int(y)) for y in y_train), flat(x_test), ", ".join(str(int(y)) for y in y_test)))


def print_bytes(name, data):
    print("inline const std::vector<std::uint8_t> %s{%s};" % (name, ", ".join(str(b) for b in data)))


if len(sys.argv) > 1:
    xs, ys = articles(300)
    save(sys.argv[1], xs, ys, compressed=True)
    (x_train, y_train), (x_test, y_test) = load_data(xs, ys, num_words=1000)
    print(json.dumps({"train": x_train, "train_topics": [int(y) for y in y_train], "test": x_test,
                      "test_topics": [int(y) for y in y_test]}))
    sys.exit()

xs, ys = articles(24)
new, old = io.BytesIO(), io.BytesIO()
save(new, xs, ys, compressed=False)
save_as_numpy_1(old, xs, ys)
print("// Written by recorded_reuters.py.\n#pragma once\n\n#include <cstdint>\n#include <vector>\n")
print("namespace lockstep::data {\n")
print("struct RecordedReuters {\n  std::vector<std::vector<std::int64_t>> train;\n  std::vector<std::int64_t> "
      "train_topics;\n  std::vector<std::vector<std::int64_t>> test;\n  std::vector<std::int64_t> test_topics;\n};")
print_bytes("kNewReutersFile", new.getvalue())
print_bytes("kOldReutersFile", old.getvalue())
print_split("kReutersByDefault", load_data(xs, ys))
print_split("kReutersOfFewWords", load_data(xs, ys, num_words=100, skip_top=6, maxlen=9, test_split=0.5, seed=1))
print_split("kReutersWithoutMarks", load_data(xs, ys, num_words=300, start_char=None, oov_char=None, index_from=0))
print("\n}  // namespace lockstep::data")
