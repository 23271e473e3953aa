"""Trains small tokenizers and writes them with the ids and texts that Python's `tokenizers` and `sentencepiece` give.

usage: make_tokenizers.py FOLDER

FOLDER/cases.json lists cases: the tokenizer's file, a text's file, options, and the files with the expected ids (int32) and decoded texts.
Where `transformers` is installed, its tokenizers must give the same ids.
"""

import array
import gzip
import json
import os
import pathlib
import random
import sys
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

HERE = pathlib.Path(sys.argv[1])
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
cases = []

# -- texts

SENTENCES = [
    "The quick brown fox jumps over the lazy dog. It's 1,234.56 dollars; they'RE sure we'Ll pay, aren't they?",
    "Ça va? Où est l'été? Füße, groß, naïve café, cafe\u0301, A\u030angstro\u0308m, İstanbul, ΑΒΓΣ τέλος ὀδυσσεύς, ſtraße ﬁne",
    "Съешь ещё этих мягких французских булок, да выпей же чаю. \u0419 и\u0306",
    "東京都に住んでいます。 漢字とカタカナ、ひらがな。 ｶﾞｷﾞｸﾞ 한국어 ᄒ\u1161ᆫ 我们在学习中文分词１２３",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣ لا إله\u064e שָׁלוֹם עוֹלָם",
    "สวัสดีครับ ภาษาไทยไม่มีช่องว่าง นี่คือการทดสอบ नमस्ते दुनिया क्षत्रिय",
    "👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ 🏳️‍🌈 😀😃 ☕️ 🧑\u200d💻 x\u200by \u200cz \ufeffmark",
    "tabs\t\tand   spaces    \n\n  new\r\nlines\r\r\n \t \n end   ",
    "controls\x00\x01\x02\x1f\x7f\x85\u2028\u2029\u00a0\u3000\u1680\u180e\u202f\ufffd\ufffe \x0b\x0c.",
    "¼ ½ ² ³ ¹ Ⅷ ⅷ ⓐ Ⓑ ① ㊀ ™ ℃ Ω K Å ﷺ ﬀ \u0345 \u1e9b\u0323 ǅ ŉ",
    "snake_case camelCase __init__ a+b==c; x->y; //comment <|endoftext|>text<|endoftext|> [MASK] [SEP]x <mask> <s>a</s>",
    "'s 'S 't 'T 'ſ 'lL 'VE ''s don't DON'T I'd i'D' '\n",
]


def reuters(data):
    words = (data / "reuters_vocab.txt").read_text(encoding="utf-8").splitlines()
    with gzip.open(data / "reuters_train.jsonl.gz", "rt") as lines:
        texts = [" ".join(words[t] for t in json.loads(line)["tokens"]) for line, _ in zip(lines, range(300))]
    return "\n".join(texts)


# Characters that Unicode 3.2 has, with the category that they still have: all libraries know them.
def any_characters():
    old = unicodedata.ucd_3_2_0
    known = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Co"
             and old.category(chr(c)) == unicodedata.category(chr(c)) != "Cn"]
    rare = [c for c in known if not 0x3400 <= ord(c) < 0xD7A4 and ord(c) < 0x20000]
    draw = random.Random(1)
    return "".join(draw.choice(rare if draw.random() < 0.9 else known) if draw.random() < 0.8 else draw.choice(" ab1.\n")
                   for _ in range(20000))


def make_texts():
    texts = {"languages": "\n".join(SENTENCES), "characters": any_characters(), "empty": "", "spaces": " " * 500}
    data = pathlib.Path(os.environ.get("LOCKSTEP_DATA", ""))
    for name, read in {"shakespeare": lambda: (data / "tinyshakespeare/input.txt").read_bytes().decode(),
                       "reuters": lambda: reuters(data / "reuters")}.items():
        try:
            texts[name] = read()
        except OSError:
            print(f"left out: LOCKSTEP_DATA has no {name}")
    draw = random.Random(2)
    if "shakespeare" in texts:
        texts["part"] = texts["shakespeare"][:100000]
    texts["few_characters"] = texts["characters"][:3000]
    texts["words"] = " ".join("".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 12))) for _ in range(5000))
    for name, text in texts.items():
        (HERE / f"{name}.txt").write_bytes(text.encode("utf-8"))
    return texts


# -- cases


def save(name, content):
    (HERE / name).write_bytes(content)
    return name


def add_case(file, text_name, ids, decoded, decoded_all, **options):
    stem = f"case{len(cases)}"
    cases.append({"tokenizer": file, "text": f"{text_name}.txt", "ids": save(stem + ".ids", array.array("i", ids).tobytes()),
                  **{key: save(f"{stem}.{key}", text.encode("utf-8")) for key, text in
                     (("decoded", decoded), ("decoded_all", decoded_all)) if text is not None}, **options})


def add_cases(name, tokenizer, texts, options=({"add_special_tokens": True}, {"add_special_tokens": False})):
    file = f"{name}.json"
    tokenizer.save(str(HERE / file))
    tokenizer = Tokenizer.from_file(str(HERE / file))
    for text_name, text in texts.items():
        if name in ("roberta", "llama2", "bert_cased") and text_name == "shakespeare":
            continue
        for each in options if len(text) < 100000 else options[:1]:
            ids = tokenizer.encode_batch_fast([text], **each)[0].ids
            decoded_all = tokenizer.decode(ids, skip_special_tokens=False) if len(text) < 100000 else None
            add_case(file, text_name, ids, tokenizer.decode(ids), decoded_all, **each)
    pair = tokenizer.encode(SENTENCES[0], SENTENCES[3])
    add_case(file, "languages", pair.ids, tokenizer.decode(pair.ids), tokenizer.decode(pair.ids, skip_special_tokens=False),
             first=SENTENCES[0], second=SENTENCES[3], type_ids=pair.type_ids)
    return tokenizer


def trained(tokenizer, trainer, corpus):
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def byte_level(pre_tokenizer, corpus, special, size=1500, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    return trained(tokenizer, trainer, corpus)


def split_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def template(begin, end, tokenizer):
    ids = [(t, tokenizer.token_to_id(t)) for t in {begin, end} if t]
    single = " ".join(t for t in (begin, "$A", end) if t)
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1" + (f" {end}:1" if end else ""), special_tokens=ids)


def add_byte_level_tokenizers(corpus, texts):
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), corpus, ["<|endoftext|>"])
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    add_cases("gpt2", gpt2, texts)
    llama3 = byte_level(split_bytes(LLAMA3), corpus, ["<|begin_of_text|>", "<|endoftext|>"], ignore_merges=True)
    llama3.post_processor = processors.Sequence([processors.ByteLevel(), template("<|begin_of_text|>", None, llama3)])
    add_cases("llama3", llama3, texts)
    qwen2 = byte_level(split_bytes(QWEN2), corpus, ["<|endoftext|>"])
    qwen2.normalizer = normalizers.NFC()
    add_cases("qwen2", qwen2, texts)
    roberta = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), corpus, ["<s>", "</s>"])
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("[MASK]", rstrip=True, lstrip=True)])
    roberta.add_tokens([AddedToken("the", single_word=True), AddedToken("spaces  ", normalized=False), "  ", "çA", "ou"])
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    roberta.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    add_cases("roberta", roberta, texts)


def add_bert(name, corpus, texts, processor, **normalizer):
    bert = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
    bert.normalizer = normalizers.BertNormalizer(**normalizer)
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained(bert, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False, limit_alphabet=400), corpus)
    bert.post_processor = processor(bert)
    add_cases(name, bert, texts)


# As Llama 2's: the whole text is one word, in which spaces are U+2581.
def add_llama2(corpus, texts):
    base = Tokenizer(models.BPE(unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    trained(base, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=100), corpus)
    file = json.loads(base.to_str())
    vocabulary = file["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    file["model"].update(byte_fallback=True, fuse_unk=True)
    llama2 = Tokenizer.from_str(json.dumps(file))
    llama2.pre_tokenizer = None
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama2.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    llama2.post_processor = template("<s>", None, llama2)
    add_cases("llama2", llama2, texts)


# Every pre-tokenizer and normalizer, under models whose ids show where words begin.
def add_every_step(corpus, texts):
    p, n = pre_tokenizers, normalizers
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    steps = [(None, each) for each in (p.Whitespace(), p.WhitespaceSplit(), p.Digits(True), p.Digits(False), p.BertPreTokenizer())]
    steps += [(None, p.Punctuation(b)) for b in behaviors]
    steps += [(None, p.Split(w, b, invert=i)) for w in ("a", Regex(r"[aeiou]|\s+"), Regex(r"\w+"), Regex(r"\b")) for b in behaviors for i in (False, True)]
    steps += [(None, p.Metaspace("▁", s, split=c)) for s in ("always", "first", "never") for c in (True, False)]
    steps += [(None, p.Sequence([p.WhitespaceSplit(), p.Metaspace("▁", s)])) for s in ("always", "first")]
    steps += [(None, p.Split(Regex(pattern), "isolated")) for pattern in
              (r"\p{N}{1,3}+", r"\d{,3}", r"\d{,2}+,", r"[a-z]{2}?", r"(?:[a-z]o|é){1,2}+", r"(?i)B|the", r"\v|(?:(?i)Q|K)u", r"[[:space:]]", r"[^[:space:]]+",
               r"[[:blank:][:digit:]]", r"[[:cntrl:]]", r"[^[:ascii:]]", r"[[:xdigit:]]+")]
    steps += [(None, p.Sequence([p.ByteLevel(), p.Digits(True)])), (None, p.Split(Regex(r"(?m:a.b)|^\S|[\h\S]$|\u0061"), "isolated"))]
    steps += [(each, p.Whitespace()) for each in (n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.StripAccents(), n.Strip(), n.Strip(left=False),
                                                  n.Replace("a", "bb"), n.Replace(Regex(r"\s+"), " "), n.Replace(Regex("x*"), "-"), n.Prepend("_"))]
    steps += [(n.BertNormalizer(c, h, s, l), p.Whitespace()) for c in (True, False) for h in (True, False) for s in (True, False, None) for l in (True, False)]
    file = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    file.pre_tokenizer = p.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["[UNK]"], continuing_subword_prefix="##", end_of_word_suffix="</w>",
                                  show_progress=False)
    trained(file, trainer, corpus)
    for number, (normalizer, pre_tokenizer) in enumerate(steps):
        tokenizer = Tokenizer.from_str(file.to_str())
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = [decoders.WordPiece("##", True), decoders.WordPiece("##", False), decoders.BPEDecoder("</w>"),
                             decoders.Metaspace("▁", "always"), decoders.Metaspace("▁", "never"), decoders.ByteFallback()][number % 6]
        if number % 7 == 0:
            tokenizer = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "decoder": None}))
        add_cases(f"step{number}", tokenizer, texts, options=({"add_special_tokens": True},))


def add_sentencepiece(corpus, texts):
    import sentencepiece

    sentencepiece.set_min_log_level(2)
    for name, options in {"unigram": {"model_type": "unigram"}, "bytes": {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["<sep>"]}}.items():
        file = f"{name}.model"
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_prefix=str(HERE / name), vocab_size=1000,
                                                 hard_vocab_limit=False, character_coverage=0.98, num_threads=2, **options)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / file))
        for text_name, text in texts.items():
            # By lines: a unigram model's sums of a long text lose their digits, and not the same in each version of the library.
            for around in (False, True) if len(text) < 50000 else (False,):
                ids = [i for line in text.split("\n") for i in processor.encode(line, add_bos=around, add_eos=around)]
                kept = [i for i in ids if not processor.is_control(i) and not processor.is_unknown(i)]
                add_case(file, text_name, ids, processor.decode(kept), processor.decode(ids), begin=around, end=around, lines=True)


def fields(message):
    """The numbers and contents of a protobuf's fields, as far as a model of SentencePiece has them."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        size = {1: 8, 5: 4}.get(key & 7) or number() * (key & 7 == 2)
        yield key >> 3, message[at:at + size]
        at += size


# The model that add_sentencepiece() has trained, with its rules for characters.
def add_unigram(corpus, texts):
    import sentencepiece

    p, n = pre_tokenizers, normalizers
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "unigram.model"))
    vocab = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]
    model = (HERE / "unigram.model").read_bytes()
    rules = next(content for spec in (spec for field, spec in fields(model) if field == 3)
                 for field, content in fields(spec) if field == 2)

    def unigram(normalizer, pre_tokenizer, entries=vocab, **options):
        tokenizer = Tokenizer(models.Unigram(entries, unk_id=0, **options))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        return tokenizer

    t5 = unigram(n.Sequence([n.Precompiled(rules), n.Strip(left=False), n.Replace(Regex(" {2,}"), "▁")]), p.Metaspace())
    t5.post_processor = template(None, "</s>", t5)
    add_cases("t5", t5, texts)
    xlmr = unigram(n.Precompiled(rules), p.Sequence([p.WhitespaceSplit(), p.Metaspace()]))
    xlmr.post_processor = template("<s>", "</s>", xlmr)
    add_cases("xlmr", xlmr, texts)
    albert = unigram(n.Sequence([n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD(), n.StripAccents(), n.Lowercase(),
                                 n.Precompiled(rules), n.Replace(Regex(" {2,}"), " ")]), p.Metaspace())
    add_cases("albert", albert, texts)
    bytes_too = vocab + [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    add_cases("unigram_bytes", unigram(None, p.Metaspace(prepend_scheme="first", split=False), bytes_too, byte_fallback=True), texts)
    # Equal sums, and a whole text as one word.
    coarse = vocab[:3] + [(token, float(round(score / 4))) for token, score in vocab[3:]]
    add_cases("unigram_ties", unigram(None, p.Metaspace(split=False), coarse), texts)
    own = Tokenizer(models.Unigram())
    own.normalizer = n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(" {2,}"), " ")])
    own.pre_tokenizer, own.decoder = p.Metaspace(), decoders.Metaspace()
    trained(own, trainers.UnigramTrainer(vocab_size=800, special_tokens=["<unk>", "<pad>"], unk_token="<unk>", show_progress=False), corpus)
    add_cases("unigram_own", own, texts)


def check_transformers(texts):
    try:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    except ImportError:
        print("left out: there is no package transformers")
        return
    names = {"gpt2": "GPT2Tokenizer", "llama3": "PreTrainedTokenizerFast", "qwen2": "Qwen2Tokenizer", "bert": "BertTokenizer",
             "t5": "PreTrainedTokenizerFast", "xlmr": "PreTrainedTokenizerFast"}
    for name, kind in names.items():
        folder = HERE / f"auto-{name}"
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes((HERE / f"{name}.json").read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        expected = Tokenizer.from_file(str(HERE / f"{name}.json"))
        for tokenizer in (PreTrainedTokenizerFast(tokenizer_file=str(HERE / f"{name}.json")), AutoTokenizer.from_pretrained(folder)):
            for text_name in ("languages", "characters"):
                ids = tokenizer(texts[text_name])["input_ids"]
                if ids != expected.encode(texts[text_name]).ids:
                    print(f"transformers: {name} on {text_name} differs as {type(tokenizer).__name__}")
                    add_case(f"{name}.json", text_name, ids, None, None)


def main():
    texts = make_texts()
    corpus = SENTENCES + [line for name in ("shakespeare", "reuters", "words") if name in texts for line in texts[name][:60000].split("\n")]
    small = {name: texts[name] for name in ("languages", "characters", "empty", "spaces")}
    add_byte_level_tokenizers(corpus, texts)
    add_bert("bert", corpus, texts, lambda bert: template("[CLS]", "[SEP]", bert))
    add_bert("bert_cased", corpus, small, lambda bert: processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), lowercase=False)
    add_llama2(corpus, texts)
    add_every_step(SENTENCES, {name: texts[name] for name in ("languages", "few_characters")})
    add_sentencepiece(corpus, {name: text for name, text in texts.items() if name not in ("words", "few_characters", "shakespeare")})
    add_unigram(corpus, texts)
    check_transformers(texts)
    (HERE / "cases.json").write_text(json.dumps(cases))


main()
