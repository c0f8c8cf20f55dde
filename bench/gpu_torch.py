"""The PyTorch side of bench/gpu: GPT-2 as pgpt records it, trained the way that is fast in PyTorch 2.

    gpu_torch.py info                              version, device, bytes/s of a copy, FLOP/s of a product
    gpu_torch.py attention MODEL,B,T ...           which of the fused attentions is faster at these shapes
    gpu_torch.py step MODEL B T ATTENTION [MODE]   compiles, says so, then measures N steps for every line "N" it reads, and
                                                   for "attention" says which one a step calls
    gpu_torch.py learn FILE STEPS EVERY TARGET SEED,... trains on characters until the validation loss is TARGET

Each prints lines of JSON. The model is compiled as a whole; weights are f32, products and attention bf16 under autocast;
AdamW is the fused one; tokens lie on the GPU before the clock runs, and the host waits for the GPU only at the end of a
measurement. Of PyTorch's fused attentions (flash, cuDNN) the one is taken that is faster at the shape in question, and the
vocabulary is filled up to 50,304 columns, as good scripts do by hand. MODE is torch.compile's (default: default).
"""

import argparse
import getpass
import json
import math
import os
import sys
import tempfile
import time

import gpu_data

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"PyTorch 2 is missing ({missing})", file=sys.stderr)
    sys.exit(3)

# name: layers, heads, channels, vocabulary, context
MODELS = {
    "nano": (4, 4, 128, 65, 128),
    "mini": (6, 6, 384, 65, 256),
    "gpt2": (12, 12, 768, 50304, 1024),
    "gpt2-medium": (24, 16, 1024, 50304, 1024),
    "gpt2-xl": (48, 25, 1600, 50304, 1024),
}
ATTENTIONS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
DEFAULT_ATTENTION = "default"  # PyTorch's own choice, where none of these works
NO_TARGET = -1


class Block(nn.Module):
    def __init__(self, channels, n_heads, n_layers, dropout):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
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

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def forward(self, x):  # (B,T,C)
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(B, T, C)))
        return x + self.drop(self.proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, n_layers, n_heads, channels, vocabulary, context, dropout=0.0):
        super().__init__()
        self.vocabulary, self.context, self.dropout = vocabulary, context, dropout
        self.token = nn.Embedding(vocabulary, channels)
        self.position = nn.Embedding(context, channels)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(channels, n_heads, n_layers, dropout) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(channels)

    def forward(self, tokens, targets):  # (B,T) twice -> the mean loss of the targets that are there
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.view(-1, self.vocabulary), targets.reshape(-1), ignore_index=NO_TARGET)


def say(**values):
    print(json.dumps(values), flush=True)


def seconds_of(work, n):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n


def autocast():
    return torch.autocast("cuda", dtype=torch.bfloat16)


def make_optimizer(model, lr, beta2=0.99, weight_decay=0.1):
    """Matrices decay, vectors do not."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), eps=1e-8, fused=True)


def rate_at(step, n_steps, lr, lr_min, n_warmup):
    """pgpt's cosine (src/optim/learning_rate.c); step counts from 0."""
    if step < n_warmup:
        return lr * (step + 1) / n_warmup
    return lr_min + (lr - lr_min) * 0.5 * (1.0 + math.cos(math.pi * (step - n_warmup) / (n_steps - n_warmup)))


def time_attentions(B, T, n_heads, head_size, dropout):
    """Milliseconds forward and backward of those that work, the fastest first."""
    qkv = torch.randn(B, T, 3, n_heads, head_size, device="cuda", dtype=torch.bfloat16)
    q, k, v = (qkv[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3))

    def once():
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout).sum().backward()

    times = {}
    for name, backend in ATTENTIONS.items():
        try:
            with sdpa_kernel(backend):
                seconds_of(once, 3)
                times[name] = min(seconds_of(once, 10) for _ in range(5))
        except RuntimeError as error:
            print(f"attention by {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    torch.cuda.empty_cache()
    return {name: 1e3 * times[name] for name in sorted(times, key=times.get)}


def use_attention(name):
    """The others are switched off. What is compiled has it built in, but the compiler's cache does not ask for it, so each has
    a cache of its own."""
    cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}_{name}")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    if name not in ATTENTIONS:
        return
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_cudnn_sdp(name == "cuDNN")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def used_attention(step):
    """By the name of what a step calls; None if it calls neither by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(0)
    names = {event.key for event in profile.key_averages()}
    return next((name for name in ATTENTIONS if f"aten::_scaled_dot_product_{name.lower()}_attention" in names), None)


def train_step(compiled, parameters, optimizer, tokens, targets):
    with autocast():
        loss = compiled(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


# ---- info


def show_info():
    """What the machine can do: bytes/s of a copy (read and written), bf16 FLOP/s of a product of random numbers."""
    a, b = (torch.randn(1 << 30, device="cuda") for _ in range(2))
    copy = lambda: b.copy_(a)
    seconds_of(copy, 5)
    copied = 2 * a.numel() * a.element_size() / min(seconds_of(copy, 5) for _ in range(5))
    del a, b
    n = 8192
    x, y = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = lambda: x @ y
    seconds_of(product, 5)
    flops = 2.0 * n**3 / min(seconds_of(product, 10) for _ in range(3))
    say(torch=torch.__version__, device=torch.cuda.get_device_name(), copy_bytes_per_s=copied, bf16_flops_per_s=flops)


# ---- attention


def show_attentions(shapes):
    for shape in shapes:
        name, B, T = shape.split(",")
        _, n_heads, channels, _, _ = MODELS[name]
        times = time_attentions(int(B), int(T), n_heads, channels // n_heads, 0.0)
        say(shape=shape, attention=next(iter(times), DEFAULT_ATTENTION), ms=times)


# ---- step


def serve_steps(name, B, T, attention, mode):
    n_layers, n_heads, channels, vocabulary, context = MODELS[name]
    use_attention(attention)
    with torch.device("cuda"):
        model = GPT(n_layers, n_heads, channels, vocabulary, context)
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, 3e-4)
    compiled = torch.compile(model, mode=None if mode == "default" else mode)
    batches = [torch.randint(min(vocabulary, 50257), (B, T + 1), device="cuda") for _ in range(4)]
    pairs = [(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) for batch in batches]

    def step(i):
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        return train_step(compiled, parameters, optimizer, *pairs[i % len(pairs)])

    start = time.perf_counter()
    step(0).item()
    compile_seconds = time.perf_counter() - start
    for i in range(4):
        step(i)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say(ready=True, compile_seconds=compile_seconds, parameters=sum(p.numel() for p in parameters))
    for line in sys.stdin:
        if line.strip() == "attention":
            say(used_attention=used_attention(step) if mode == "default" else None)  # a recording names nothing
            continue
        n_steps = int(line)
        torch.cuda.reset_peak_memory_stats()
        for i in range(3):
            step(i)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(n_steps):
            loss = step(i)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / n_steps
        say(step_ms=1e3 * seconds, tokens_per_s=B * T / seconds, loss=loss.item(),
            peak_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())  # fmt: skip
        torch.cuda.empty_cache()


# ---- learn

LEARN = {"n_layers": 6, "n_heads": 6, "channels": 384, "context": 256, "dropout": 0.2}
LEARN_BATCH, LEARN_LR, LEARN_LR_MIN, LEARN_WARMUP = 64, 1e-3, 1e-4, 100


class Learner:
    """tinyshakespeare's characters, the batches and the held-out windows that pgpt has."""

    def __init__(self, path, n_steps):
        self.source = gpu_data.Text.read(path, "char")
        self.T = T = LEARN["context"]
        self.n_steps = n_steps
        self.text = torch.tensor(self.source.tokens, device="cuda")
        self.window = torch.arange(T + 1, device="cuda")
        held_out = self.text[self.source.n_train :]
        self.n_windows = (len(held_out) - 1) // T
        n_batches = (self.n_windows - 1) // LEARN_BATCH + 1
        number = torch.arange(n_batches * LEARN_BATCH, device="cuda")
        rows = number.clamp(max=self.n_windows - 1)[:, None] * T + self.window
        self.held_out = held_out[rows].view(n_batches, LEARN_BATCH, T + 1)
        self.is_real = (number < self.n_windows).view(n_batches, LEARN_BATCH, 1)
        self.n_real = self.is_real.sum(dim=(1, 2)).tolist()
        self.attention = next(iter(time_attentions(LEARN_BATCH, T, 6, 64, LEARN["dropout"])), DEFAULT_ATTENTION)
        use_attention(self.attention)
        with torch.device("cuda"):
            self.model = GPT(vocabulary=self.source.vocabulary, **LEARN)
        self.parameters = list(self.model.parameters())
        self.compiled = torch.compile(self.model)

    def begin(self, seed):
        """New weights, in the memory of the old ones, and the batches of this seed."""
        torch.manual_seed(seed)
        with torch.device("cuda"):
            self.model.load_state_dict(GPT(vocabulary=self.source.vocabulary, **LEARN).state_dict())
        self.optimizer = make_optimizer(self.model, LEARN_LR)
        starts = self.source.starts(self.n_steps * LEARN_BATCH, self.T, seed).reshape(self.n_steps, LEARN_BATCH)
        self.starts = torch.from_numpy(starts).cuda()
        torch.cuda.synchronize()

    def step(self, i):
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(i, self.n_steps, LEARN_LR, LEARN_LR_MIN, LEARN_WARMUP)
        rows = self.text[self.starts[i][:, None] + self.window]
        return train_step(self.compiled, self.parameters, self.optimizer, rows[:, :-1], rows[:, 1:])

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total = 0.0
        for rows, is_real, n_real in zip(self.held_out, self.is_real, self.n_real):
            targets = torch.where(is_real, rows[:, 1:], NO_TARGET)
            with autocast():
                total += self.compiled(rows[:, :-1], targets) * n_real
        self.model.train()
        return (total / self.n_windows).item()


def learn(path, n_steps, every, target, seeds):
    learner = Learner(path, n_steps)
    learner.begin(seeds[0])
    start = time.perf_counter()
    for i in range(min(3, n_steps)):
        learner.step(i)
    learner.evaluate()
    compile_seconds = time.perf_counter() - start
    say(ready=True, compile_seconds=compile_seconds, attention=learner.attention)
    for seed in seeds:
        learner.begin(seed)
        start = time.perf_counter()
        for i in range(n_steps):
            learner.step(i)
            if (i + 1) % every and i + 1 < n_steps:
                continue
            loss = learner.evaluate()
            say(seed=seed, step=i + 1, val_loss=loss, seconds=time.perf_counter() - start)
            if loss <= target:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["info", "attention", "step", "learn"])
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU", file=sys.stderr)
        sys.exit(3)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    words = arguments.words
    if arguments.what == "info":
        show_info()
    elif arguments.what == "attention":
        show_attentions(words)
    elif arguments.what == "step":
        serve_steps(words[0], int(words[1]), int(words[2]), words[3], words[4] if len(words) > 4 else "default")
    else:
        learn(words[0], int(words[1]), int(words[2]), float(words[3]), [int(seed) for seed in words[4].split(",")])


if __name__ == "__main__":
    main()
