"""Text as pgpt deals it out: which window of the text is sequence number n of a run with a given seed.

The order is a pure function of (seed, sequence), see src/data/dataset.c and src/base/random.h. With it another program
trains on the same batches, so that two curves differ by arithmetic alone. Everything works on plain integers and, element
by element, on numpy's arrays of uint64.

    text = Text.read("book.txt", "char")
    starts = text.starts(n_sequences=steps * B, T=256, seed=1)      # (steps*B) first tokens, as an array of int64
"""

import pathlib

RANDOM_DATA = 2 << 32
ORDER, OFFSET = 0, 1
WORD, LONG = (1 << 32) - 1, (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & LONG
    return x ^ (x >> 31)


def random_key(seed, purpose, step):
    key = mix((seed + 0x9E3779B97F4A7C15) & LONG)
    key = mix(key ^ ((purpose + 0xD1B54A32D192ED03) & LONG))
    key = mix(key ^ ((step + 0x8CB92BA72F3D8DD7) & LONG))
    return key & WORD, key >> 32


def random_word(key, row, column):
    """The first word of Philox 4x32-10 at (row, column); row and column below 2^32 are enough here."""
    c0, c1, c2, c3 = column & WORD, column >> 32, row, 0
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0


def permute_once(key, index, half_bits):
    mask = (1 << half_bits) - 1
    left, right = index >> half_bits, index & mask
    for number in range(1, 7):
        left, right = right, left ^ (random_word(key, number + 0 * right, right) & mask)
    return left << half_bits | right


def half_bits_of(n):
    half_bits = 1
    while (1 << (2 * half_bits)) < n:
        half_bits += 1
    return half_bits


def permutation(key, n):
    """The whole permutation of 0 .. n-1 as an array: what lands outside goes on until it is inside."""
    import numpy

    half_bits = half_bits_of(n)
    index = permute_once(key, numpy.arange(n, dtype=numpy.uint64), half_bits)
    while (outside := index >= n).any():
        index[outside] = permute_once(key, index[outside], half_bits)
    return index.astype(numpy.int64)


def window_of(seed, sequence, n_tokens, T):
    """Where the window of one sequence starts; the plain form of Text.starts, for tests."""
    n_windows = (n_tokens - T) // T
    epoch = sequence // n_windows
    index, half_bits, key = sequence % n_windows, half_bits_of(n_windows), random_key(seed, RANDOM_DATA + ORDER, epoch)
    while (index := permute_once(key, index, half_bits)) >= n_windows:
        pass
    return offset_of(seed, epoch, n_tokens, n_windows, T) + index * T


def offset_of(seed, epoch, n_tokens, n_windows, T):
    n_offsets = min(n_tokens - n_windows * T, T)
    return random_word(random_key(seed, RANDOM_DATA + OFFSET, epoch), 0, 0) * n_offsets >> 32


class Text:
    """A text's tokens, the last tenth of them held out."""

    def __init__(self, tokens, vocabulary):
        n_validation = int(len(tokens) * 0.1)
        self.tokens, self.vocabulary = tokens, vocabulary
        self.n_train = len(tokens) - n_validation

    @staticmethod
    def read(path, tokenizer):
        """`byte`: 256 symbols; `char`: the characters of the text, in the order of their code points."""
        data = pathlib.Path(path).read_bytes()
        if tokenizer == "byte":
            return Text(list(data), 256)
        text = data.decode("utf-8")
        ids = {character: number for number, character in enumerate(sorted(set(text)))}
        return Text([ids[character] for character in text], len(ids))

    def starts(self, n_sequences, T, seed):
        import numpy

        n_windows = (self.n_train - T) // T
        if n_windows < 1:
            raise ValueError(f"{self.n_train} tokens are too few for windows of {T}")
        parts = []
        for epoch in range((n_sequences - 1) // n_windows + 1):
            order = permutation(random_key(seed, RANDOM_DATA + ORDER, epoch), n_windows)
            parts.append(order * T + offset_of(seed, epoch, self.n_train, n_windows, T))
        return numpy.concatenate(parts)[:n_sequences]
