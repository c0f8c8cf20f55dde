#!/usr/bin/env python3
"""Compare pgpt's byte-level BPE with Hugging Face's `tokenizers` and OpenAI's `tiktoken`, where those are installed.

    python3 tests/device/bpe.py --program build-device/pgpt

Gathers about 12 MB of English and code from Python's own files, trains a vocabulary of 16,384 on it with pgpt, and checks
that `tokenizers`, with the tokenizer.json that pgpt wrote, and `tiktoken`, with the same vocabulary, give the same ids.
Then times the encoders on one core. Exits 1 if any ids differ.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def gather(n_bytes):
    """Text files below Python's folders, in a fixed order, until there are n_bytes of valid UTF-8."""
    parts, total = [], 0
    for root in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]):
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                if not name.endswith((".py", ".txt", ".rst", ".md")) or total >= n_bytes:
                    continue
                try:
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = file.read(400_000)
                except (OSError, UnicodeDecodeError):
                    continue
                parts.append(text)
                total += len(text.encode())
    return "".join(parts)


def byte_letters():
    """GPT-2's way to write bytes as printable characters, back to bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in printable):
        letters[chr(256 + n)] = b
    return letters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/pgpt")
    program = os.path.abspath(parser.parse_args().program)
    import tiktoken
    import tokenizers

    failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = gather(12_000_000)
        with open("text.txt", "w", encoding="utf-8", newline="") as file:
            file.write(text)
        n_bytes = os.path.getsize("text.txt")
        start = time.time()
        subprocess.run([program, "data", "train-tokenizer", "text.txt", "--vocab-size", "16384", "--out", "tok"], check=True)
        print(f"training 16,384 symbols on {n_bytes / 1e6:.1f} MB: {time.time() - start:.2f} s")
        ours = list(map(int, subprocess.run([program, "data", "encode", "text.txt", "--tokenizer", "tok/tokenizer.json"],
                                            check=True, capture_output=True).stdout.split()))  # fmt: skip

        theirs = tokenizers.Tokenizer.from_file("tok/tokenizer.json")
        start = time.time()
        ids = theirs.encode(text, add_special_tokens=False).ids
        seconds_tokenizers = time.time() - start
        failed |= ids != ours
        print(f"tokenizers {tokenizers.__version__}: {len(ids)} ids, {'the same' if ids == ours else 'DIFFERENT'}")

        with open("tok/tokenizer.json", encoding="utf-8") as file:
            model = json.load(file)
        letters = byte_letters()
        special = {token["content"]: token["id"] for token in model["added_tokens"]}
        ranks = {bytes(letters[c] for c in token): rank for token, rank in model["model"]["vocab"].items() if token not in special}
        encoding = tiktoken.Encoding("test", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
        encoding.encode_ordinary(text[:100_000])
        start = time.time()
        ids = encoding.encode_ordinary(text)
        seconds_tiktoken = time.time() - start
        same = ids == ours
        failed |= not same
        print(f"tiktoken {tiktoken.__version__}: {len(ids)} ids, {'the same' if same else 'DIFFERENT'}")

        result = subprocess.run([program, "data", "prepare", "text.txt", "--tokenizer", "tok/tokenizer.json", "--threads", "1",
                                 "--out", "shards", "--json"], check=True, capture_output=True, text=True)  # fmt: skip
        seconds = json.loads(result.stdout.strip().splitlines()[-1])["seconds"]
        print(f"encoding on one core, MB/s: pgpt {n_bytes / seconds / 1e6:.1f} (reading, encoding and writing shards), "
              f"tiktoken {n_bytes / seconds_tiktoken / 1e6:.1f}, tokenizers {n_bytes / seconds_tokenizers / 1e6:.1f} (all cores)")  # fmt: skip
        print(f"pgpt / tiktoken {seconds_tiktoken / seconds:.1f}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
