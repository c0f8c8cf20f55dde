#!/usr/bin/env python3
"""A text completed by a model of pgpt, through its library: embed.py MODEL PROMPT

libpgpt is found as every library is (ldconfig, LD_LIBRARY_PATH), or by its path in PGPT_LIBRARY.
"""
import ctypes
import os
import sys


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 1024)]


def check(status, error):
    if status:
        sys.exit(f"embed.py: {error.text.decode()}")


pgpt = ctypes.CDLL(os.environ.get("PGPT_LIBRARY", "libpgpt.so"))
pgpt.pgpt_free.argtypes = pgpt.pgpt_close.argtypes = [ctypes.c_void_p]
if len(sys.argv) != 3:
    sys.exit("usage: embed.py MODEL PROMPT")
folder, prompt = (os.fsencode(word) for word in sys.argv[1:])
options = (ctypes.c_char_p * 4)(b"tokens=60", b"temperature=0.8", b"seed=1", None)
error, model, text = Error(), ctypes.c_void_p(), ctypes.c_void_p()
check(pgpt.pgpt_open(folder, None, ctypes.byref(model), ctypes.byref(error)), error)
check(pgpt.pgpt_complete(model, prompt, options, ctypes.byref(text), ctypes.byref(error)), error)
sys.stdout.buffer.write(prompt + ctypes.string_at(text) + b"\n")
pgpt.pgpt_free(text)
pgpt.pgpt_close(model)
