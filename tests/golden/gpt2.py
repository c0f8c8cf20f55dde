#!/usr/bin/env python3
"""What PyTorch computes for a small GPT-2, in double: writes tests/golden/gpt2.txt for tests/model/test_model.c.

Run it after changing the model:  python3 tests/golden/gpt2.py > tests/golden/gpt2.txt

Weights and tokens are a hash of their name and index, as in ops.py. Recorded are the logits, the loss, the norm and
some elements of every gradient, and the losses of ten AdamW steps with clipping.
"""

import math

import torch
import torch.nn.functional as F
from ops import floats, integers, record

L, NH, C, V, T, B = 2, 3, 24, 61, 11, 4
STEPS, RATE, BETAS, EPSILON, DECAY, CLIP = 10, 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0


def parameters():
    """In the order and with the shapes of the parameter table: linear weights are (out,in)."""
    table = {"wte.weight": (V, C), "wpe.weight": (T, C)}
    for i in range(L):
        table |= {
            f"h.{i}.ln_1.weight": (C,),
            f"h.{i}.ln_1.bias": (C,),
            f"h.{i}.attn.c_attn.weight": (3 * C, C),
            f"h.{i}.attn.c_attn.bias": (3 * C,),
            f"h.{i}.attn.c_proj.weight": (C, C),
            f"h.{i}.attn.c_proj.bias": (C,),
            f"h.{i}.ln_2.weight": (C,),
            f"h.{i}.ln_2.bias": (C,),
            f"h.{i}.mlp.c_fc.weight": (4 * C, C),
            f"h.{i}.mlp.c_fc.bias": (4 * C,),
            f"h.{i}.mlp.c_proj.weight": (C, 4 * C),
            f"h.{i}.mlp.c_proj.bias": (C,),
        }
    table |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    return {
        name: floats(name, *shape, scale=0.25, offset=1.0 if "ln_" in name and "weight" in name else 0.0).requires_grad_()
        for name, shape in table.items()
    }


def forward(p, tokens):
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for i in range(L):
        w = lambda name: p[f"h.{i}.{name}"]
        h = F.layer_norm(x, (C,), w("ln_1.weight"), w("ln_1.bias"), 1e-5)
        qkv = F.linear(h, w("attn.c_attn.weight"), w("attn.c_attn.bias"))
        q, k, v = (t.view(B, T, NH, C // NH).transpose(1, 2) for t in qkv.split(C, 2))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(C // NH)).masked_fill(~mask, -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(y, w("attn.c_proj.weight"), w("attn.c_proj.bias"))
        h = F.layer_norm(x, (C,), w("ln_2.weight"), w("ln_2.bias"), 1e-5)
        h = F.gelu(F.linear(h, w("mlp.c_fc.weight"), w("mlp.c_fc.bias")), approximate="tanh")
        x = x + F.linear(h, w("mlp.c_proj.weight"), w("mlp.c_proj.bias"))
    return F.linear(F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], 1e-5), p["wte.weight"])


def batch(step):
    sequence = integers(f"tokens {step}", B, T + 1, below=V)
    return sequence[:, :-1], sequence[:, 1:]


def loss_of(p, step):
    tokens, targets = batch(step)
    logits = forward(p, tokens)
    return logits, F.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))


def main():
    print(f"# PyTorch {torch.__version__}, float64, tests/golden/gpt2.py")
    p = parameters()
    logits, loss = loss_of(p, 0)
    loss.backward()
    record("first", logits=logits, loss=loss)
    for name, tensor in p.items():
        record("gradient", **{name: tensor.grad})
    groups = [
        {"params": [t for t in p.values() if t.dim() == 2], "weight_decay": DECAY},
        {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(p, step)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP))
        optimizer.step()
        losses.append(loss)
    record("training", losses=torch.stack(losses), norms=torch.stack(norms))


if __name__ == "__main__":
    main()
