"""What examples/finetune_minilm does, in transformers: the same texts, batches of the same size, rates and loss; on one process.

finetune_minilm.py --data DIR --model DIR/minilm [--steps N] [--test N] [--seed N]
"""

import argparse
import gzip
import json
import time

import torch
import transformers

torch.set_num_threads(2)
TOPICS, BATCH, LENGTH, RATE = 52, 32, 64, 2e-4


class Classifier(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.encoder = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.topic = torch.nn.Linear(self.encoder.config.hidden_size, TOPICS)

    def forward(self, ids):
        mask = (ids != 0).long()
        longest = int(mask.sum(1).max())
        ids, mask = ids[:, :longest], mask[:, :longest]
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.topic((hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


def articles(path, words, tokenizer):
    ids, labels = [], []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            text = "".join(words[word] + " " for word in record["tokens"] if not words[word].startswith("<"))
            ids.append(tokenizer(text, truncation=True, max_length=LENGTH, padding="max_length")["input_ids"])
            labels.append(record["label"])
    return torch.tensor(ids), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    for name, kind, default in [("data", str, "data"), ("model", str, "data/minilm"), ("steps", int, 0), ("test", int, 0), ("seed", int, 1)]:
        parser.add_argument("--" + name, type=kind, default=default)
    flags = parser.parse_args()
    folder = flags.data + "/reuters/"
    with open(folder + "reuters_vocab.txt", encoding="utf-8") as file:
        words = file.read().splitlines()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=flags.model + "/tokenizer.json", pad_token="[PAD]")
    train_ids, train_labels = articles(folder + "reuters_train.jsonl.gz", words, tokenizer)
    test_ids, test_labels = articles(folder + "reuters_test.jsonl.gz", words, tokenizer)
    torch.manual_seed(flags.seed)
    net = Classifier(flags.model)
    steps = flags.steps or len(train_ids) // BATCH
    adam = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.01)
    net.train()
    order, begin = torch.randperm(len(train_ids)), time.time()
    for step in range(steps):
        for group in adam.param_groups:
            group["lr"] = RATE * (steps - step) / steps
        rows = order[step * BATCH:(step + 1) * BATCH]
        loss = torch.nn.functional.cross_entropy(net(train_ids[rows]), train_labels[rows])
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
    seconds = time.time() - begin
    net.eval()
    right, count = 0, flags.test or len(test_ids)
    with torch.no_grad():
        for first in range(0, count, BATCH):
            last = min(first + BATCH, count)
            right += (net(test_ids[first:last]).argmax(1) == test_labels[first:last]).sum().item()
    print(f"accuracy {right / count:.4f} on {count} test samples; {steps * BATCH / seconds:.1f} articles/s in training")


main()
