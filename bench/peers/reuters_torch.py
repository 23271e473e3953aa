#!/usr/bin/env python3
"""examples/reuters' network, data and recipe with PyTorch, to compare accuracies on the same articles.

reuters_torch.py --data DIR [--epochs N] [--lr R] [--seed N]     DIR contains reuters_{train,test}.jsonl.gz, reuters_vocab.txt, reuters_topics.txt

Network and recipe are those of examples/reuters.cpp: the last 300 words, padded in front; Nadam with Keras' options, a cosine learning rate,
batches of 32; a tenth of the training set held out; training replaces words and shifts articles in the window. The random numbers are
PyTorch's, and so is the choice of the articles that are held out.
"""

import argparse
import gzip
import json
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

LENGTH, UNKNOWN = 300, 2


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [(record["tokens"], record["label"]) for record in map(json.loads, lines)]


def count_lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


class Net(nn.Module):
    def __init__(self, words, topics):
        super().__init__()
        self.embedding = nn.Embedding(words, 7)
        self.conv1, self.conv2 = nn.Conv1d(7, 64, 5), nn.Conv1d(64, 32, 3)
        self.topic = nn.Linear(((LENGTH - 4) // 2 - 2) // 2 * 32, topics)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        for layer in (self.conv1, self.conv2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.topic.weight)
        nn.init.zeros_(self.topic.bias)

    def forward(self, words):
        x = self.embedding(words).transpose(1, 2)
        x = functional.max_pool1d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool1d(functional.relu(self.conv2(x)), 2)
        return self.topic(x.flatten(1))


def changed(tokens, options):
    """The tokens of an article that training uses: see augmented() of examples/reuters.cpp."""
    kept = [token for token, drawn in zip(tokens, torch.rand(len(tokens)).tolist()) if drawn >= options.drop] or tokens[:1]
    words = [UNKNOWN if drawn < options.unknown else token for token, drawn in zip(kept, torch.rand(len(kept)).tolist())]
    return words + [0] * int(torch.randint(options.shift, ()))


def batch_of(articles, change=lambda tokens: tokens):
    rows = []
    for tokens, _ in articles:
        last = change(tokens)[-LENGTH:]
        rows.append([0] * (LENGTH - len(last)) + last)
    return torch.tensor(rows), torch.tensor([label for _, label in articles])


def score(net, articles):
    net.eval()
    first = five = 0
    with torch.no_grad():
        for begin in range(0, len(articles), 256):
            words, labels = batch_of(articles[begin:begin + 256])
            best = net(words).topk(5).indices
            first += (best[:, 0] == labels).sum().item()
            five += (best == labels[:, None]).any(1).sum().item()
    return first / len(articles), five / len(articles)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--drop", type=float, default=0.1)
    parser.add_argument("--unknown", type=float, default=0.1)
    parser.add_argument("--shift", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    known, test = read(options.data / "reuters_train.jsonl.gz"), read(options.data / "reuters_test.jsonl.gz")
    order = torch.randperm(len(known)).tolist()
    held_out, train = [known[i] for i in order[:len(known) // 10]], [known[i] for i in order[len(known) // 10:]]
    net = Net(count_lines(options.data / "reuters_vocab.txt"), count_lines(options.data / "reuters_topics.txt"))
    nadam = torch.optim.NAdam(net.parameters(), lr=options.lr, eps=1e-7, momentum_decay=1)
    per_epoch = len(train) // options.batch
    for epoch in range(options.epochs):
        net.train()
        order = torch.randperm(len(train)).tolist()
        for step in range(per_epoch):
            nadam.param_groups[0]["lr"] = options.lr * (1 + math.cos(math.pi * (epoch * per_epoch + step) / (options.epochs * per_epoch))) / 2
            words, labels = batch_of([train[i] for i in order[step * options.batch:(step + 1) * options.batch]],
                                     lambda tokens: changed(tokens, options))
            nadam.zero_grad()
            functional.cross_entropy(net(words), labels).backward()
            nadam.step()
        print(f"epoch {epoch + 1}/{options.epochs}: val_accuracy {score(net, held_out)[0]:.4f}", flush=True)
    accuracy, five = score(net, test)
    print(json.dumps({"accuracy": accuracy, "top5": five}))


if __name__ == "__main__":
    main()
