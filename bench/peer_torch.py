"""The PyTorch side of bench/peer_torch: one measurement in a process of its own, printed as one line of JSON.

    peer_torch.py info
    peer_torch.py step MODEL BATCH SEQUENCE THREADS WARMUP STEPS MODE DTYPE
    peer_torch.py generate MODEL TOKENS THREADS RUNS DTYPE

MODE is eager, or compiled (torch.compile, PyTorch 2). DTYPE is f32, or bf16: autocast over f32 weights, which is what
pgpt's --dtype bf16 is.

The model is GPT-2 as pgpt records it: layernorm before attention and MLP, learned positions, biases, tanh GELU, head
tied to the token embedding, initialised alike. PyTorch 2 gets its fused attention; before that there was none for the
CPU, and it is written the way users of 1.13 wrote it. Where there was a choice, the cheaper one was taken for PyTorch:
one mask of booleans is shared by all blocks, gradients are dropped and not cleared, generation computes the head for
the last position only.
"""

import json
import math
import os
import resource
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as missing:
    print(f"PyTorch is missing ({missing})", file=sys.stderr)
    sys.exit(3)

HAS_FUSED_ATTENTION = hasattr(F, "scaled_dot_product_attention")

# name: layers, heads, channels, vocabulary, context
MODELS = {"mini": (6, 6, 384, 65, 256), "gpt2": (12, 12, 768, 50257, 1024)}


class Block(nn.Module):
    def __init__(self, channels, n_heads, n_layers):
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.norm2 = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.proj = nn.Linear(4 * channels, channels)
        for linear in (self.qkv, self.out, self.fc, self.proj):
            scale = math.sqrt(2 * n_layers) if linear in (self.out, self.proj) else 1.0
            nn.init.normal_(linear.weight, std=0.02 / scale)
            nn.init.zeros_(linear.bias)

    def forward(self, x, hidden):  # x (B,T,C), hidden (T,T): true where a position lies in the future
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2) for t in (q, k, v))
        if HAS_FUSED_ATTENTION:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // self.n_heads))  # (B,NH,T,T)
            y = F.softmax(weights.masked_fill(hidden, float("-inf")), dim=-1) @ v
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, name):
        super().__init__()
        n_layers, n_heads, channels, self.vocabulary, self.context = MODELS[name]
        self.token = nn.Embedding(self.vocabulary, channels)
        self.position = nn.Embedding(self.context, channels)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(channels, n_heads, n_layers) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(channels)
        future = torch.triu(torch.ones(self.context, self.context, dtype=torch.bool), diagonal=1)
        self.register_buffer("future", future, persistent=False)

    def features(self, tokens):  # (B,T) -> (B,T,C)
        T = tokens.shape[1]
        x = self.token(tokens) + self.position(torch.arange(T))
        hidden = self.future[:T, :T]
        for block in self.blocks:
            x = block(x, hidden)
        return self.norm(x)

    def loss(self, tokens, targets):
        logits = F.linear(self.features(tokens), self.token.weight)
        return F.cross_entropy(logits.view(-1, self.vocabulary), targets.view(-1))

    def next_logits(self, tokens):
        return F.linear(self.features(tokens)[:, -1, :], self.token.weight)


def precision(dtype):
    """The context to compute in. f32 is what everything is made in."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16")


def capability():
    """The instruction set of PyTorch's own vector loops."""
    if hasattr(torch.backends, "cpu") and hasattr(torch.backends.cpu, "get_cpu_capability"):
        return torch.backends.cpu.get_cpu_capability()
    for line in torch.__config__.show().splitlines():
        if "CPU capability" in line:
            return line.split(":")[-1].strip()
    return "unknown"


def blas():
    """The BLAS libraries that this process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
    names = ("blas", "mkl", "atlas", "blis")
    return sorted(p for p in paths if any(name in os.path.basename(p) for name in names) and ".so" in p)


def peak_bytes():
    """The most memory this process ever held; VmHWM, which unlike ru_maxrss forgets the process that started it."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median(values):
    values = sorted(values)
    return 0.5 * (values[(len(values) - 1) // 2] + values[len(values) // 2])


def measure_step(name, batch, sequence, n_warmup, n_steps, mode, dtype):
    model = GPT(name)
    loss_of = torch.compile(model.loss) if mode == "compiled" else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.99), weight_decay=0.1)
    seconds = []
    for step in range(n_warmup + n_steps):
        tokens = torch.randint(model.vocabulary, (batch, sequence + 1))
        start = time.perf_counter()
        with precision(dtype):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        last = loss.item()
        if step >= n_warmup:
            seconds.append(time.perf_counter() - start)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": last,
        "step_ms": 1e3 * median(seconds),
        "tokens_per_s": batch * sequence / median(seconds),
        "resident_bytes": peak_bytes(),
    }


def measure_generate(name, n_tokens, n_runs, dtype):
    model = GPT(name).eval()
    seconds = []
    with torch.no_grad(), precision(dtype):
        for run in range(-1, n_runs):
            tokens = torch.zeros((1, 1), dtype=torch.long)
            start = time.perf_counter()
            for _ in range(n_tokens if run >= 0 else 8):
                logits = model.next_logits(tokens[:, -model.context :])
                chosen = torch.multinomial(F.softmax(logits.float(), dim=-1), num_samples=1)
                tokens = torch.cat((tokens, chosen), dim=1)
            if run >= 0:
                seconds.append(time.perf_counter() - start)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_s": n_tokens / median(seconds),
        "resident_bytes": peak_bytes(),
    }


def main(words):
    torch.manual_seed(1)
    if words[0] == "info":
        torch.ones(64, 64) @ torch.ones(64, 64)
        result = {"torch": torch.__version__, "blas": " ".join(blas()) or "none mapped", "vectors": capability()}
    elif words[0] == "step":
        batch, sequence, threads, n_warmup, n_steps = map(int, words[2:7])
        torch.set_num_threads(threads)
        result = measure_step(words[1], batch, sequence, n_warmup, n_steps, words[7], words[8])
    elif words[0] == "generate":
        n_tokens, threads, n_runs = map(int, words[2:5])
        torch.set_num_threads(threads)
        result = measure_generate(words[1], n_tokens, n_runs, words[5])
    else:
        sys.exit(f"peer_torch.py: unknown measurement '{words[0]}'")
    print(json.dumps(result))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
