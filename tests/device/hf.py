#!/usr/bin/env python3
"""pgpt against Hugging Face's transformers: the same model on both sides of a conversion.

    tests/device/build-static                        # where pgpt is built
    python3 tests/device/hf.py [--folder build-device] # where transformers is

For random GPT-2s of several forms (types, shards, a head of its own, the erf GELU, no head at all):
  - the folder that transformers saved, and what `pgpt convert` makes of it, give transformers' logits within 1e-4;
  - `pgpt eval` gives its loss to 6 digits;
  - converted back, config.json and the weights are the same to the byte (shards: tensor by tensor), and from_pretrained
    loads them without a missing or unexpected key, a warning, or a changed bit in the logits.
And a model that pgpt trained gives the same logits in transformers. Exit code 1 if anything differs.
"""

import argparse
import json
import logging
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

B, T, V = 3, 48, 300
BYTES = '{"pgpt_tokenizer":1,"kind":"byte"}\n'
TEXT = "The quick brown fox jumps over the lazy dog, twice. "[:T]

CASES = {
    "f32": {},
    "bf16": {"dtype": torch.bfloat16},
    "f16": {"dtype": torch.float16},
    "untied, erf, inner": {"tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 100},
    "shards": {"shard": "60KB"},
    "bf16 shards": {"dtype": torch.bfloat16, "shard": "60KB"},
    "bare": {"bare": True},
}

failures = 0


def check(what, ok, detail=""):
    global failures
    failures += not ok
    print(f"  {'ok    ' if ok else 'FAILED'} {what} {detail}", flush=True)


class Warnings(logging.Handler):
    """What transformers complains about while it loads."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def run(program, *words, data=None):
    result = subprocess.run([str(program), *map(str, words)], input=data, capture_output=True)
    if result.returncode:
        raise RuntimeError(f"{program.name} {' '.join(map(str, words))}: {result.stderr.decode(errors='replace')}")
    return result.stdout


def pgpt_logits(programs, folder, tokens, n_vocabulary=V):
    out = run(programs / "dump_logits", folder, *tokens.shape, data=tokens.to(torch.int32).numpy().tobytes())
    return torch.frombuffer(bytearray(out), dtype=torch.float32).reshape(*tokens.shape, n_vocabulary)


def pgpt_loss(programs, folder, text):
    line = run(programs / "pgpt", "eval", folder, "--data", text, "--json", "--quiet").decode().splitlines()[-1]
    return json.loads(line)["loss"]


def load(folder):
    """A model from a folder, in f32; the keys that did not fit; what transformers complained about."""
    warnings = Warnings()
    transformers.utils.logging.add_handler(warnings)
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    transformers.utils.logging.remove_handler(warnings)
    info = info if isinstance(info, dict) else vars(info)
    wrong = [f"{key} {sorted(map(str, value))[:3]}" for key, value in info.items() if value]
    return model.float().eval(), wrong, [message.replace(str(folder), "FOLDER") for message in warnings.messages]


def hf_loss(model, ids):
    with torch.no_grad():
        logits = model(ids).logits.double()
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).item()


def tensors(folder):
    from safetensors import safe_open

    found = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}
    return found


def same_tensors(a, b):
    a, b = tensors(a), tensors(b)
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(a[k].view(torch.uint8), b[k].view(torch.uint8))
        for k in a
    )


def save_random(folder, options):
    options = dict(options)
    dtype, shard, bare = options.pop("dtype", torch.float32), options.pop("shard", None), options.pop("bare", False)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=T, n_embd=60, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0, initializer_range=0.15, **options
    )
    model = (transformers.GPT2Model if bare else transformers.GPT2LMHeadModel)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, which begin as ones and zeros
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    (folder / "pgpt_tokenizer.json").write_text(BYTES)


def check_case(programs, place, name, options):
    print(name)
    theirs, ours, back = place / "theirs", place / "ours", place / "back"
    save_random(theirs, options)
    model, usual_wrong, usual_complaints = load(theirs)
    tokens = torch.randint(0, V, (B, T))
    with torch.no_grad():
        logits = model(tokens).logits
    check("their folder, logits", *within(pgpt_logits(programs, theirs, tokens), logits))
    run(programs / "pgpt", "convert", theirs, ours)
    check("our folder, logits", *within(pgpt_logits(programs, ours, tokens), logits))
    text = place / "text"
    text.write_text(TEXT)
    loss = hf_loss(model, torch.tensor([list(TEXT.encode())]))
    for folder in (theirs, ours):
        mine = pgpt_loss(programs, folder, text)
        check(f"loss of {folder.name}", abs(mine - loss) <= 2e-6 * abs(loss), f"{mine:.8f} {loss:.8f}")
    run(programs / "pgpt", "convert", ours, back, *(["--max-shard-size", options["shard"]] if "shard" in options else []))
    check("config.json is the same", (theirs / "config.json").read_bytes() == (back / "config.json").read_bytes())
    check("tensors are the same", same_tensors(theirs, back))
    if "shard" not in options:
        check("model.safetensors is the same", (theirs / "model.safetensors").read_bytes() == (back / "model.safetensors").read_bytes())
    again, wrong, complaints = load(back)
    check("from_pretrained, no key too few or too many", wrong == (usual_wrong if "bare" in options else []), str(wrong))
    check("from_pretrained, no complaint", complaints == usual_complaints, str(complaints))
    with torch.no_grad():
        check("from_pretrained, the same logits", torch.equal(again(tokens).logits, logits))
    check("from_pretrained, the same loss", hf_loss(again, torch.tensor([list(TEXT.encode())])) == loss)


def within(mine, theirs):
    difference = (mine - theirs).abs().max().item()
    return difference <= 1e-4 and math.isfinite(difference), f"difference {difference:.2e}, largest {theirs.abs().max().item():.2f}"


def check_trained(programs, place):
    print("a model that pgpt trained")
    run(programs / "pgpt", "train", "--layers", 2, "--heads", 2, "--channels", 32, "--context", T, "--tokenizer", "byte",
        "--steps", 30, "--sample-tokens", 0, "--out", place / "run")  # fmt: skip
    run(programs / "pgpt", "convert", place / "run", place / "exported")
    model, wrong, complaints = load(place / "exported")
    check("from_pretrained, no key too few or too many", not wrong, str(wrong))
    check("from_pretrained, no complaint", not complaints, str(complaints))
    tokens = torch.randint(0, 256, (B, T))
    with torch.no_grad():
        check("logits", *within(pgpt_logits(programs, place / "run", tokens, 256), model(tokens).logits))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="build-device", help="where pgpt and dump_logits are")
    programs = pathlib.Path(parser.parse_args().folder).resolve()
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as place:
        for i, (name, options) in enumerate(CASES.items()):
            case = pathlib.Path(place) / str(i)
            case.mkdir()
            check_case(programs, case, name, options)
        check_trained(programs, pathlib.Path(place))
    print("all is well" if not failures else f"{failures} checks FAILED")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
