#!/usr/bin/env python3
"""Compares pivot's tokenizer with the `tokenizers` package: every id of long texts, of every Unicode
character and of random Unicode strings.

    tools/tokenizer_parity.py ENCODE_LINES TOKENIZER.JSON [--texts FILE ...] [--random 100000] [--seed 1]

ENCODE_LINES is the test program tests/text/tokenizer/encode_lines. Exit codes: 0 all equal, 1 a difference (the first
few are printed with the smallest text that shows each), 77 the package is not installed (tools/requirements-test.txt).
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import time
import unicodedata

try:
    import tokenizers
except ImportError:
    print("SKIPPED: the Python package `tokenizers` is not installed; "
          "pip install --no-deps --require-hashes -r tools/requirements-test.txt", file=sys.stderr)
    sys.exit(77)

BATCH = 5000
SHOWN_DIFFERENCES = 5
WHITE_SPACE = "\t\n\v\f\r \x1c\x1f\x85\xa0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def is_scalar(code_point: int) -> bool:
    return not 0xD800 <= code_point <= 0xDFFF


class RandomTexts:
    """Strings that mix everything a splitter looks at; the same for the same seed."""

    def __init__(self, seed: int, added_tokens: list):
        self.random = random.Random(seed)
        self.added_tokens = added_tokens
        by_category = {}
        for code_point in range(0x30000):
            if is_scalar(code_point):
                by_category.setdefault(unicodedata.category(chr(code_point))[0], []).append(chr(code_point))
        self.categories = [by_category[key] for key in sorted(by_category)]
        self.marks = by_category["M"]
        self.numbers = by_category["N"]
        self.makers = [
            self.any_scalar, self.plane_zero, self.ascii, self.ascii, self.ascii_word, self.category, self.category,
            self.combining, self.white_space, self.white_space, self.digits, self.cjk, self.kana_edge, self.surrogate_edge,
            self.control, self.added, self.added_fragment, self.newlines, self.private_or_last, self.repeated,
        ]

    def text(self) -> str:
        pieces = [self.random.choice(self.makers)() for _ in range(self.random.choice((0, 1, 2, 3, 5, 8, 13, 40)))]
        return "".join(pieces)

    def pick(self, low: int, high: int) -> str:
        while True:
            code_point = self.random.randint(low, high)
            if is_scalar(code_point):
                return chr(code_point)

    def many(self, make, most: int) -> str:
        return "".join(make() for _ in range(self.random.randint(1, most)))

    def any_scalar(self): return self.many(lambda: self.pick(0, 0x10FFFF), 4)
    def plane_zero(self): return self.many(lambda: self.pick(0, 0xFFFF), 4)
    def ascii(self): return self.many(lambda: self.pick(0x20, 0x7E), 6)
    def ascii_word(self): return self.random.choice(("", " ", "\n", "_")) + self.many(lambda: self.random.choice("aeiouthsrnLDM'"), 9)
    def category(self): return self.many(lambda: self.random.choice(self.random.choice(self.categories)), 3)
    def combining(self): return self.random.choice("eA ค1-") + self.many(lambda: self.random.choice(self.marks), 3)
    def white_space(self): return self.many(lambda: self.random.choice(WHITE_SPACE), 4)
    def newlines(self): return self.many(lambda: self.random.choice(" \r\n"), 5)
    def digits(self): return self.many(lambda: self.random.choice(self.random.choice(("0123456789", self.numbers))), 7)
    def cjk(self): return self.many(lambda: self.pick(0x4E00, 0x9FFF), 6)
    def kana_edge(self): return self.many(lambda: self.pick(0x3030, 0x3110), 4)
    def surrogate_edge(self): return self.random.choice("\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0010ffff\ufdd0")
    def control(self): return self.many(lambda: self.random.choice((chr(0), chr(0x7F), self.pick(0, 0x1F), self.pick(0x80, 0x9F))), 3)
    def private_or_last(self): return self.pick(*self.random.choice(((0xE000, 0xF8FF), (0xF0000, 0x10FFFF), (0xE0000, 0xE01EF))))
    def added(self): return self.random.choice(self.added_tokens)
    def repeated(self): return self.pick(0x20, 0x2FFF) * self.random.randint(2, 70)

    def added_fragment(self):
        token = self.random.choice(self.added_tokens)
        other = self.random.choice(self.added_tokens)
        cut = self.random.randint(0, len(token))
        return self.random.choice((token[:cut], token[cut:], token[:cut] + other, token[:-1] + other[:1] + token[-1:]))


class Ours:
    def __init__(self, program: str, tokenizer: str):
        self.command = [program, tokenizer]

    def encode(self, texts: list) -> list:
        encoded = [text.encode() for text in texts]
        sent = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
        output = subprocess.run(self.command, input=sent, stdout=subprocess.PIPE, check=True).stdout
        ids, at = [], 0
        for _ in texts:
            (count,) = struct.unpack_from("<I", output, at)
            ids.append(list(struct.unpack_from(f"<{count}I", output, at + 4)))
            at += 4 + 4 * count
        if at != len(output):
            raise RuntimeError(f"{len(output) - at} bytes too many came back")
        return ids


def smallest_difference(text: str, theirs, ours: Ours) -> str:
    """Cuts the text down while the two still disagree."""
    def differs(candidate: str) -> bool:
        return theirs(candidate) != ours.encode([candidate])[0]

    step = max(1, len(text) // 2)
    while step > 0:
        at = 0
        while at < len(text):
            candidate = text[:at] + text[at + step:]
            if candidate != text and differs(candidate):
                text = candidate
            else:
                at += step
        step //= 2
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("--texts", nargs="*", default=[], help="files to compare whole")
    parser.add_argument("--random", type=int, default=100_000, help="how many random strings")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    reference = tokenizers.Tokenizer.from_file(options.tokenizer)
    ours = Ours(options.program, options.tokenizer)

    def theirs(text: str) -> list:
        return reference.encode(text, add_special_tokens=False).ids

    differences = 0

    def compare(texts: list, what: str) -> int:
        nonlocal differences
        tokens = 0
        wanted = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
        for text, want, got in zip(texts, wanted, ours.encode(texts)):
            tokens += len(want)
            if want == got:
                continue
            differences += 1
            if differences <= SHOWN_DIFFERENCES:
                small = smallest_difference(text[:20_000], theirs, ours)
                print(f"DIFFERENT ({what}): {small!r}\n  reference {theirs(small)}\n  pivot     {ours.encode([small])[0]}")
        return tokens

    for name in options.texts:
        text = pathlib.Path(name).read_bytes().decode()
        start = time.monotonic()
        tokens = compare([text], name)
        print(f"{pathlib.Path(name).name}: {tokens} tokens compared ({time.monotonic() - start:.1f} s)")

    # Between letters, between spaces and beside a digit, so that the class of each character shows in the cuts.
    characters = [f"a{chr(c)}b {chr(c)} 1{chr(c)}" for c in range(0x110000) if is_scalar(c)]
    texts = ["".join(characters[first : first + 64]) for first in range(0, len(characters), 64)]
    tokens = sum(compare(texts[first : first + BATCH], "every character") for first in range(0, len(texts), BATCH))
    print(f"every Unicode character ({len(characters)}): {tokens} tokens compared")

    added_tokens = [token["content"] for token in json.loads(pathlib.Path(options.tokenizer).read_bytes())["added_tokens"]]
    source = RandomTexts(options.seed, added_tokens)
    tokens = 0
    for first in range(0, options.random, BATCH):
        tokens += compare([source.text() for _ in range(min(BATCH, options.random - first))], "random")
    print(f"{options.random} random strings (seed {options.seed}): {tokens} tokens compared")
    print(f"tokenizers {tokenizers.__version__}: " + ("all equal" if differences == 0 else f"{differences} texts DIFFER"))
    return 0 if differences == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
