#!/usr/bin/env python3
"""What PyTorch computes for the cases of tests/ops/test_ops.c, in double: writes tests/golden/ops.txt.

Run it after changing a case:  python3 tests/golden/ops.py > tests/golden/ops.txt

Inputs are a hash of their name and index, the same as test_value() in tests/harness.c, so only results are recorded.
An entry is a line "CASE TENSOR COUNT" and then the values; a tensor "dx" is the gradient of x for the loss
sum(y * dy). Dropout masks come from the counter-based generator of src/base/random.h, written here a second time.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


# ---- test data ----


def hashes(name, count):
    x = 2166136261
    for byte in name.encode():
        x = ((x ^ byte) * 16777619) & MASK32
    h = (x + np.arange(count, dtype=np.uint64) * 2654435761) & MASK32
    h = ((h ^ (h >> 15)) * 2246822519) & MASK32
    h = ((h ^ (h >> 13)) * 3266489917) & MASK32
    return h ^ (h >> 16)


def floats(name, *shape, scale=1.0, offset=0.0):
    values = (hashes(name, math.prod(shape)) >> 8).astype(np.float32) / np.float32(8388608) - np.float32(1)
    values = np.float32(offset) + np.float32(scale) * values
    return torch.tensor(values.astype(np.float64)).reshape(shape)


def integers(name, *shape, below):
    return torch.tensor((hashes(name, math.prod(shape)) % below).astype(np.int64)).reshape(shape)


def as_float32(number):
    return float(np.float32(number))


# ---- results ----


def record(case, **tensors):
    for name, tensor in tensors.items():
        values = tensor.detach().reshape(-1).tolist()
        print(case, name, len(values))
        for i in range(0, len(values), 8):
            print(" ".join(f"{value:.9g}" for value in values[i : i + 8]))


def record_with_gradients(case, inputs, compute):
    """compute(**inputs) gives y, or (y, {further results}); floating inputs get gradients."""
    leaves = {name: t.requires_grad_() for name, t in inputs.items() if t.is_floating_point()}
    result = compute(**inputs)
    y, further = result if isinstance(result, tuple) else (result, {})
    (y * floats("dy", *y.shape)).sum().backward()
    record(case, y=y, **further, **{"d" + name: leaf.grad for name, leaf in leaves.items()})


# ---- dropout ----


def philox(key, row, column):
    c = [column & MASK32, column >> 32, row & MASK32, row >> 32]
    k = [key & MASK32, key >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


def dropout_key(seed, site, step):
    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
        return x ^ (x >> 31)

    key = mix((seed + 0x9E3779B97F4A7C15) & MASK64)
    key = mix(key ^ ((3 << 32) + site + 0xD1B54A32D192ED03) & MASK64)
    return mix(key ^ ((step + 0x8CB92BA72F3D8DD7) & MASK64))


def dropout_factor(sequence, index, probability):
    """0, or what keeps the expectation, for element `index` of a sequence of the test's batch."""
    seed = ((-0x6543210 & MASK32) << 32) | 0x12345678
    block = philox(dropout_key(seed, 5, 7), 11 + sequence, index // 8)
    draw = (block[index % 8 // 2] >> (16 * (index % 2))) & 0xFFFF
    threshold = int(as_float32(probability) * 65536 + 0.5)
    return 65536 / (65536 - threshold) if draw >= threshold else 0.0


def attention_mask(B, NH, T, probability, first_head=2):
    row = (T + 7) // 8 * 8
    mask = torch.ones(B, NH, T, T, dtype=torch.float64)
    for b, h, q, k in np.ndindex(B, NH, T, T):
        if probability:
            mask[b, h, q, k] = dropout_factor(b, ((first_head + h) * T + q) * row + k, probability)
    return mask


# ---- the operations that PyTorch has no single function for ----


def split_heads(qkv, NH, NKV, HS):
    """qkv (B,T,W) -> queries, keys, values (B,heads,T,HS), keys and values repeated for the heads that share them."""
    B, T, _ = qkv.shape
    q, k, v = qkv.split([NH * HS, NKV * HS, NKV * HS], dim=2)
    q, k, v = (t.reshape(B, T, -1, HS).transpose(1, 2) for t in (q, k, v))
    return q, k.repeat_interleave(NH // NKV, dim=1), v.repeat_interleave(NH // NKV, dim=1)


def attention(qkv, NH, NKV, HS, dropout=0.0):
    B, T, _ = qkv.shape
    q, k, v = split_heads(qkv, NH, NKV, HS)
    scores = q @ k.transpose(2, 3) * as_float32(1 / math.sqrt(HS))
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    weights = F.softmax(scores, dim=3) * attention_mask(B, NH, T, dropout)
    y = (weights @ v).transpose(1, 2).reshape(B, T, NH * HS)
    return y, {"lse": torch.logsumexp(scores, dim=3)}


def record_cached_attention(case, B, T, NH, NKV, HS, capacity):
    qkv = floats("qkv", B, T, (NH + 2 * NKV) * HS)
    start = integers("start", B, below=capacity - T + 1)
    keys, values = floats("keys", B, NKV, capacity, HS), floats("values", B, NKV, capacity, HS)
    rows = []
    for b in range(B):
        s = int(start[b])
        q, k, v = qkv[b].split([NH * HS, NKV * HS, NKV * HS], dim=1)
        keys[b, :, s : s + T] = k.reshape(T, NKV, HS).transpose(0, 1)
        values[b, :, s : s + T] = v.reshape(T, NKV, HS).transpose(0, 1)
        q = q.reshape(T, NH, HS).transpose(0, 1)
        k, v = (t[b, :, : s + T].repeat_interleave(NH // NKV, dim=0) for t in (keys, values))
        scores = q @ k.transpose(1, 2) * as_float32(1 / math.sqrt(HS))
        scores = scores.masked_fill(torch.ones(T, s + T, dtype=torch.bool).triu(s + 1), -math.inf)
        rows.append((F.softmax(scores, dim=2) @ v).transpose(0, 1).reshape(T, NH * HS))
    record(case, y=torch.stack(rows), keys=keys, values=values)


def rotary(qkv, start, NH, NKV, HS, shift):
    B, T, _ = qkv.shape
    turned, value = qkv.split([(NH + NKV) * HS, NKV * HS], dim=2)
    x = turned.reshape(B, T, NH + NKV, HS)
    position = shift + torch.arange(T)[None, :] + (start[:, None] if start is not None else torch.zeros(B, 1))
    angle = position[:, :, None, None] * 100.0 ** (-2 * torch.arange(HS // 2, dtype=torch.float64) / HS)
    pairs = torch.complex(x[..., : HS // 2], x[..., HS // 2 :]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([torch.cat([pairs.real, pairs.imag], 3).reshape(B, T, -1), value], 2)


def record_optimizer(case, make, state_names, N, factor=1.0):
    """One step, the third, from given state. The first third and the last element decay."""
    gradient, parameter = floats("gradient", N) * factor, floats("parameter", N)
    states = {"momentum": floats("momentum", N), "moment1": floats("moment1", N), "moment2": floats("moment2", N, offset=1.5)}
    keys = {"momentum": "momentum_buffer", "moment1": "exp_avg", "moment2": "exp_avg_sq"}
    parts = [slice(0, N // 3), slice(N // 3, N - 1), slice(N - 1, N)]
    leaves = [torch.nn.Parameter(parameter[part].clone()) for part in parts]
    groups = [{"params": [leaf], "weight_decay": decay} for leaf, decay in zip(leaves, (0.25, 0.0, 0.25))]
    optimizer = make(groups)
    for leaf, part in zip(leaves, parts):
        leaf.grad = gradient[part].clone()
        state = {keys[name]: states[name][part].clone() for name in state_names}
        optimizer.state[leaf] = {**state, "step": torch.tensor(2.0)} if "moment1" in state_names else state
    optimizer.step()
    after = {name: torch.cat([optimizer.state[leaf][keys[name]] for leaf in leaves]) for name in state_names}
    record(case, parameter=torch.cat([leaf.detach() for leaf in leaves]), **after)


def record_lamb(case, N, factor=1.0, max_ratio=None):
    """One step of You et al.'s LAMB, the third. The matrices are those of build_lamb; of the second a part is not counted in
    the norms. What is in none neither decays nor has a ratio."""
    g, p = floats("gradient", N) * factor, floats("parameter", N)
    m, v = floats("moment1", N), floats("moment2", N, offset=1.5)
    beta1, beta2, third = as_float32(0.9), as_float32(0.95), N // 3
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    u = (m / (1 - beta1**3)) / ((v / (1 - beta2**3)).sqrt() + as_float32(1e-6))
    ratio = torch.ones(N, dtype=torch.float64)
    counted, matrix = third // 2 + third // 8, slice(third // 2, third)
    for whole, part in ((slice(0, third // 2),) * 2, (matrix, slice(third // 2, counted)), (slice(N - 1, N),) * 2):
        u[whole] += 0.25 * p[whole]
        ratio[whole] = p[part].norm() / u[part].norm()
    if max_ratio:
        ratio[:third], ratio[N - 1 :] = ratio[:third].clamp(max=max_ratio), ratio[N - 1 :].clamp(max=max_ratio)
    record(case, parameter=p - as_float32(0.02) * ratio * u, moment1=m, moment2=v)


def record_muon(case, rows, columns, scale, nesterov=False, factor=1.0):
    """One step of Jordan et al.'s Muon, by their own five steps of Newton and Schulz; the rate is half of --lr's."""
    N, mu, rate = rows * columns, 0.75, 0.5 * as_float32(0.02)
    g, p = floats("gradient", N) * factor, floats("parameter", N)
    u = mu * floats("momentum", N) + g
    X = (g + mu * u if nesterov else u).reshape(rows, columns)
    X = X / (X.norm() + 1e-7)
    X = X.T if rows > columns else X
    a, b, c = (as_float32(x) for x in (3.4445, -4.7750, 2.0315))
    for _ in range(5):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    X = scale * (X.T if rows > columns else X).reshape(-1)
    record(case, parameter=p * (1 - rate * 0.25) - rate * X, momentum=u, step=X)


# ---- the cases ----


def gelu(x, approximate):
    return F.gelu(x, approximate=approximate)


def embedding_cases():
    def embed(tokens, start=None):
        def compute(table, positions=None):
            y = table[tokens]
            if positions is None:
                return y
            place = torch.arange(tokens.shape[1])[None, :] + (start[:, None] if start is not None else 0)
            return y + positions[place]

        return compute

    table = lambda V, C: floats("table", V, C, scale=0.5)
    positions = lambda P, C: floats("positions", P, C, scale=0.5)
    tokens = integers("tokens", 2, 3, below=7)
    record_with_gradients("embedding", {"table": table(7, 5), "positions": positions(4, 5)}, embed(tokens))
    tokens, start = integers("tokens", 3, 2, below=5), integers("start", 3, below=8)
    record_with_gradients("embedding_start", {"table": table(5, 4), "positions": positions(9, 4)}, embed(tokens, start))
    record_with_gradients("embedding_token_only", {"table": table(6, 4)}, embed(integers("tokens", 2, 3, below=6)))


def norm_cases():
    def layernorm(x, weight, bias=None):
        mean, rstd = x.mean(1), 1 / (x.var(1, unbiased=False) + as_float32(1e-5)).sqrt()
        return F.layer_norm(x, x.shape[1:], weight, bias, as_float32(1e-5)), {"mean": mean, "rstd": rstd}

    def rmsnorm(x, weight):
        rstd = 1 / (x.square().mean(1) + as_float32(1e-5)).sqrt()
        return x * rstd[:, None] * weight, {"rstd": rstd}

    weight = lambda C: floats("weight", C, scale=0.5, offset=1.0)
    bias = floats("bias", 7, scale=0.5)
    record_with_gradients("layernorm", {"x": floats("x", 5, 7), "weight": weight(7), "bias": bias}, layernorm)
    record_with_gradients("layernorm_no_bias", {"x": floats("x", 3, 9), "weight": weight(9)}, layernorm)
    record_with_gradients("rmsnorm", {"x": floats("x", 4, 7), "weight": weight(7)}, rmsnorm)


def residual_norm_cases():
    def case(name, B, T, C, dropout=0.0, bias=False, rms=False, reads="both"):
        factors = [dropout_factor(b, i, dropout) if dropout else 1.0 for b in range(B) for i in range(T * C)]
        mask = torch.tensor(factors, dtype=torch.float64).reshape(B, T, C)

        def compute(x, branch, weight=None, bias=None):
            total = x + branch * mask
            mean = total.mean(2)
            variance = total.square().mean(2) if rms else total.var(2, unbiased=False)
            rstd = 1 / (variance + as_float32(1e-5)).sqrt()
            normed = torch.zeros(())
            if rms:
                normed = total * rstd[:, :, None] * weight
            elif weight is not None:
                normed = F.layer_norm(total, (C,), weight, bias, as_float32(1e-5))
            further = {"sum": total, "rstd": rstd} if rms else {"sum": total, "mean": mean, "rstd": rstd}
            y = {"sum": total, "normed": normed, "both": gelu(total, "tanh") + normed}
            return y[reads], further

        inputs = {"x": floats("x", B, T, C), "branch": floats("branch", B, T, C)}
        if reads != "sum":
            inputs["weight"] = floats("weight", C, scale=0.5, offset=1.0)
        if bias:
            inputs["bias"] = floats("bias", C, scale=0.5)
        record_with_gradients(name, inputs, compute)

    case("residual_norm", 2, 3, 7, dropout=0.4, bias=True)
    case("residual_norm_alone", 3, 2, 5, dropout=0.3, reads="normed")
    case("residual_norm_sum_only", 2, 3, 4, dropout=0.4, reads="sum")
    case("residual_norm_no_dropout", 2, 2, 6, bias=True)
    case("residual_norm_rms", 3, 2, 7, dropout=0.4, rms=True)


def linear_cases():
    def linear(approximate):
        def compute(x, weight, bias=None, residual=None):
            y = F.linear(x, weight, bias)
            y = gelu(y, approximate) if approximate else y
            return y if residual is None else y + residual

        return compute

    def inputs(N, Ci, Co, bias=True, residual=False):
        tensors = {"x": floats("x", N, Ci), "weight": floats("weight", Co, Ci, scale=0.5)}
        if bias:
            tensors["bias"] = floats("bias", Co, scale=0.5)
        if residual:
            tensors["residual"] = floats("residual", N, Co)
        return tensors

    record_with_gradients("linear", inputs(5, 7, 6), linear(None))
    record_with_gradients("linear_plain", inputs(3, 4, 5, bias=False), linear(None))
    record_with_gradients("linear_residual", inputs(4, 3, 5, residual=True), linear(None))
    record_with_gradients("linear_gelu_tanh", inputs(4, 5, 6), linear("tanh"))
    record_with_gradients("linear_gelu_erf", inputs(4, 5, 6, residual=True), linear("none"))

    def mlp(x, up, down, bias):
        return F.linear(gelu(F.linear(x, up, bias), "tanh"), down)

    tensors = {"x": floats("x", 4, 5), "up": floats("up", 6, 5, scale=0.5), "down": floats("down", 5, 6, scale=0.5)}
    record_with_gradients("mlp_gelu_tanh", {**tensors, "bias": floats("bias", 6, scale=0.5)}, mlp)


def activation_cases():
    record_with_gradients("gelu_tanh", {"x": floats("x", 9, 5, scale=30)}, lambda x: gelu(x, "tanh"))
    record_with_gradients("gelu_erf", {"x": floats("x", 9, 5, scale=30)}, lambda x: gelu(x, "none"))
    record_with_gradients("gelu_tanh_small", {"x": floats("x", 3, 5)}, lambda x: gelu(x, "tanh"))
    record_with_gradients("gelu_erf_small", {"x": floats("x", 3, 5)}, lambda x: gelu(x, "none"))
    record_with_gradients("swiglu", {"x": floats("x", 3, 10)}, lambda x: F.silu(x[:, :5]) * x[:, 5:])


def attention_cases():
    def case(name, B, T, NH, NKV, HS, dropout=0.0, scale=1.0):
        inputs = {"qkv": floats("qkv", B, T, (NH + 2 * NKV) * HS, scale=scale)}
        record_with_gradients(name, inputs, lambda qkv: attention(qkv, NH, NKV, HS, dropout))

    case("attention", 2, 5, 2, 2, 3)
    case("attention_grouped", 1, 6, 4, 2, 4)
    case("attention_one_key_head", 2, 4, 3, 1, 2)
    case("attention_saturated", 1, 6, 2, 2, 4, scale=30)
    case("attention_dropout", 2, 9, 2, 1, 3, dropout=0.3)
    record_cached_attention("attention_cached", 3, 2, 4, 2, 3, 6)
    inputs = lambda: {"qkv": floats("qkv", 2, 3, 4 * 6)}
    record_with_gradients("rotary", inputs(), lambda qkv: rotary(qkv, None, 2, 1, 6, 0))
    start = integers("start", 2, below=50)
    record_with_gradients("rotary_start", inputs(), lambda qkv: rotary(qkv, start, 2, 1, 6, 3))


# ---- sparse attention: which keys a query sees, by the definitions of the papers ----


def mix64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def bigbird_block(q, k, window, first, drawn):
    """Blocks: the last `window`, the `first` ones, and one of each `drawn`-th of those between."""
    if q - k < window or k < first:
        return True
    n, i = q - window + 1 - first, k - first
    if drawn == 0 or n <= drawn:
        return drawn > 0
    parts = [(r * n // drawn, (r + 1) * n // drawn) for r in range(drawn)]
    r = next(r for r, (begin, end) in enumerate(parts) if begin <= i < end)
    begin, end = parts[r]
    return i == begin + mix64((((q << 32) | r) + 0x9E3779B97F4A7C15) & MASK64) % (end - begin)


PATTERNS = {
    "window:5": lambda q, k: q - k < 5,
    "strided:9": lambda q, k: q - k < 9 or (q - k) % 9 == 0,
    "fixed:16:3": lambda q, k: q // 16 == k // 16 or k % 16 >= 13,
    "bigbird:16:2:1:1": lambda q, k: bigbird_block(q // 16, k // 16, 2, 1, 1),
}


def sparse_attention_cases():
    def case(name, pattern, B, T, NH, NKV, HS, documents=False):
        sees = torch.tensor([[k <= q and PATTERNS[pattern](q, k) for k in range(T)] for q in range(T)]).expand(B, 1, T, T)
        if documents:  # token 3 ends one; a token sees its own
            ends = (integers("tokens", B, T, below=23) == 3).long()
            number = torch.cumsum(ends, 1) - ends
            sees = sees & (number[:, None, :, None] == number[:, None, None, :])

        def compute(qkv):
            q, k, v = split_heads(qkv, NH, NKV, HS)
            scores = (q @ k.transpose(2, 3) * as_float32(1 / math.sqrt(HS))).masked_fill(~sees, -math.inf)
            y = (scores.softmax(3) @ v).transpose(1, 2).reshape(B, T, NH * HS)
            return y, {"lse": scores.logsumexp(3)}

        record_with_gradients(name, {"qkv": floats("qkv", B, T, (NH + 2 * NKV) * HS)}, compute)

    case("sparse_window", "window:5", 2, 13, 2, 1, 2)
    case("sparse_strided", "strided:9", 1, 31, 2, 2, 2)
    case("sparse_fixed", "fixed:16:3", 1, 41, 2, 1, 2)
    case("sparse_bigbird", "bigbird:16:2:1:1", 1, 100, 1, 1, 2)
    case("sparse_documents", "window:5", 2, 40, 2, 1, 2, documents=True)


# ---- experts: routers by the formulas of their papers, and a whole mixture ----


def router_draws(groups, T, E):
    """Two uniform numbers for every token and expert, as words(...) in tests/support/op_cases_experts.c draws."""
    seed = ((-0x6543210 & MASK32) << 32) | 0x12345678
    key = mix64((seed + 0x9E3779B97F4A7C15) & MASK64)
    key = mix64(key ^ (((7 << 32) + 3 + 0xD1B54A32D192ED03) & MASK64))
    key = mix64(key ^ ((7 + 0x8CB92BA72F3D8DD7) & MASK64))
    words = [philox(key, 11 + g, t * E + e)[:2] for g in range(groups) for t in range(T) for e in range(E)]
    return torch.tensor([[(word >> 8) / 16777216 for word in pair] for pair in words], dtype=torch.float64)


def with_capacity(wishes, groups, T, capacity):
    """Which wishes are granted: first ones of all tokens of a group in order, then second ones."""
    granted = torch.ones_like(wishes, dtype=torch.bool)
    for g in range(groups if capacity else 0):
        taken = {}
        for s in range(wishes.shape[1]):
            for n in range(g * T, (g + 1) * T):
                expert = wishes[n, s].item()
                taken[expert] = taken.get(expert, 0) + 1
                granted[n, s] = taken[expert] <= capacity
    return granted


def router_case(name, kind, groups, T, E, K, capacity=0, sigmoid=False, training=False, weight=0.0, report=False):
    logits = floats("logits", groups * T, E).requires_grad_()
    noise = floats("noise", groups * T, E).requires_grad_() if kind == "noisy" else None
    draws = router_draws(groups, T, E)
    p, scores, kept = logits.softmax(1), logits, None
    if kind == "noisy":
        normal = (-2 * (1 - draws[:, 0]).log()).sqrt() * (2 * math.pi * draws[:, 1]).cos()
        scores = logits + (normal.reshape(-1, E) if training else 0) * F.softplus(noise)
    if kind == "bias":
        scores = (logits.sigmoid() if sigmoid else p) + floats("bias", E, scale=0.3)
    if kind == "choice":  # experts choose
        gates = torch.zeros_like(p)
        for g in range(groups):
            rows = slice(g * T, (g + 1) * T)
            best = p[rows].topk(capacity, dim=0).indices
            gates = gates + F.pad(torch.zeros(T, E).double().scatter(0, best, 1.0), (0, 0, g * T, (groups - 1 - g) * T)) * p
        shares = torch.full((groups, E), 1 / E, dtype=torch.float64)
    else:
        wishes = scores.topk(K, dim=1).indices
        if kind == "noisy":
            gates = scores.gather(1, wishes).softmax(1)
        else:
            gates = (logits.sigmoid() if sigmoid else p).gather(1, wishes)
            gates = gates / gates.sum(1, keepdim=True) if K > 1 else gates
        granted = with_capacity(wishes, groups, T, capacity)
        if kind == "gshard" and training:
            kept = draws[:, 0].reshape(-1, E)[:, 0] < 2 * gates[:, 1]
            granted[:, 1] &= kept
        gates = gates * granted
        shares = F.one_hot(wishes, E).sum(1).reshape(groups, T, E).sum(1) / (T * K)
    balance = E * (shares * p.reshape(groups, T, E).mean(1)).sum()
    z = logits.logsumexp(1).square().sum()
    loss = (gates * floats("dy", *gates.shape)).sum() + as_float32(weight) * balance + as_float32(weight) / 8 * z
    loss.backward()
    further = {"dnoise": noise.grad} if kind == "noisy" else {}
    if report:
        got = torch.stack([((wishes == e) & granted).sum() for e in range(E)]).double()
        counts = [groups * T, (~granted).sum().item(), -(p * p.log()).sum().item(), balance.item(), z.item()]
        further["report"] = torch.cat([got, torch.tensor(counts, dtype=torch.float64)])
    record(name, y=gates, dlogits=logits.grad, **further)


def expert_cases():
    router_case("route_topk", "topk", 2, 5, 6, 2, weight=0.5, report=True)
    router_case("route_topk_one", "topk", 2, 5, 6, 1, weight=0.5)
    router_case("route_sigmoid", "topk", 2, 5, 6, 3, sigmoid=True, weight=0.5)
    router_case("route_capacity", "topk", 2, 7, 4, 2, capacity=2, weight=0.5, report=True)
    router_case("route_switch", "switch", 2, 5, 6, 1, weight=0.5)
    router_case("route_gshard", "gshard", 2, 5, 6, 2, weight=0.5)
    router_case("route_gshard_chance", "gshard", 2, 9, 6, 2, training=True, weight=0.5)
    router_case("route_noisy", "noisy", 2, 5, 6, 2, training=True, weight=0.5)
    router_case("route_bias", "bias", 2, 5, 6, 2, sigmoid=True, weight=0.5)
    router_case("route_expert_choice", "choice", 2, 5, 6, 2, capacity=2, weight=0.5)

    def mixture(x, router, fc, proj, **bias):
        p = F.linear(x, router).softmax(1)
        gates, experts = p.topk(2, dim=1)
        gates = gates / gates.sum(1, keepdim=True)
        hidden = gelu(torch.einsum("nc,efc->nef", x, fc) + bias["fc.bias"], "tanh")
        made = torch.einsum("nef,ecf->nec", hidden, proj)
        return (gates[:, :, None] * made.gather(1, experts[:, :, None].expand(-1, -1, x.shape[1]))).sum(1)

    inputs = {"x": floats("x", 7, 5), "router": floats("router", 4, 5, scale=0.5), "fc": floats("fc", 4, 6, 5, scale=0.5)}
    inputs.update({"fc.bias": floats("fc.bias", 4, 6, scale=0.5), "proj": floats("proj", 4, 5, 6, scale=0.5)})
    record_with_gradients("experts", inputs, mixture)


def elementwise_cases():
    record_with_gradients("add", {"x": floats("x", 3, 5), "other": floats("other", 3, 5)}, lambda x, other: x + other)
    record_with_gradients("add_same", {"x": floats("x", 3, 5)}, lambda x: x + x)
    record_with_gradients("copy", {"x": floats("x", 3, 5)}, lambda x: x.clone())
    mask = torch.tensor([dropout_factor(b, i, 0.4) for b in range(3) for i in range(35)], dtype=torch.float64)
    record_with_gradients("dropout", {"x": floats("x", 3, 5, 7)}, lambda x: x * mask.reshape(3, 5, 7))
    record("gather", y=floats("x", 6, 5)[integers("rows", 4, below=6)])
    record("sum", total=0.125 * floats("x", 3, 7).sum())


def loss_cases():
    def case(name, N, V, ignore=False, scale=1.0):
        logits = floats("logits", N, V, scale=scale).requires_grad_()
        targets = integers("targets", N, below=V)
        if ignore:
            targets[1::3] = -1
        losses = F.cross_entropy(logits, targets, reduction="none", ignore_index=-1)
        (0.25 * losses.sum()).backward()
        record(name, losses=losses, dlogits=logits.grad)

    case("cross_entropy", 4, 9)
    case("cross_entropy_ignore", 7, 5, ignore=True)
    case("cross_entropy_saturated", 4, 9, scale=30)

    predictions = floats("predictions", 4, 9).requires_grad_()
    losses = F.mse_loss(predictions, floats("targets", 4, 9), reduction="none")
    (0.25 * losses.sum()).backward()
    record("squared_error", losses=losses, dpredictions=predictions.grad)


def update_cases():
    total = floats("total", 1, offset=3.0)
    record("squared_norm", total=floats("x", 37).square().sum())
    record("squared_norm_add", total=total + floats("x", 37).square().sum())
    for name, limit in (("clip", 1.0), ("clip_below", 5.0), ("clip_off", 0.0)):
        factor = torch.clamp(limit / total.sqrt(), max=1.0) if limit else torch.ones(1)
        record(name, factor=factor, norm=total.sqrt())
    rate, betas = as_float32(0.02), (as_float32(0.9), as_float32(0.95))
    adamw = lambda groups: torch.optim.AdamW(groups, lr=rate, betas=betas, eps=as_float32(1e-8))
    sgd = lambda **options: lambda groups: torch.optim.SGD(groups, lr=rate, **options)
    record_optimizer("adamw", adamw, ["moment1", "moment2"], 37)
    record_optimizer("adamw_factor", adamw, ["moment1", "moment2"], 37, factor=0.375)
    record_lamb("lamb", 37)
    record_lamb("lamb_factor", 37, factor=0.375, max_ratio=0.5)
    record_muon("muon_wide", 4, 6, scale=0.5, nesterov=True)
    record_muon("muon_tall", 7, 5, scale=1.5, factor=0.375)
    record_optimizer("sgd_plain", sgd(), [], 37)
    record_optimizer("sgd_momentum", sgd(momentum=0.75), ["momentum"], 37, factor=0.375)
    record_optimizer("sgd_nesterov", sgd(momentum=0.75, nesterov=True), ["momentum"], 37)


def composed_cases():
    def block(x, weight, bias, scale):
        hidden = gelu(F.linear(F.layer_norm(x, x.shape[1:], scale, None, as_float32(1e-5)), weight, bias), "tanh") + x
        return F.linear(hidden + x, weight) + hidden

    inputs = {"x": floats("x", 3, 5), "weight": floats("weight", 5, 5, scale=0.5)}
    inputs.update({"bias": floats("bias", 5, scale=0.5), "scale": floats("scale", 5, scale=0.5, offset=1.0)})
    record_with_gradients("block", inputs, block)


def main():
    print(f"# Made by tests/golden/ops.py with PyTorch {torch.__version__}, in double.")
    for cases in (embedding_cases, norm_cases, residual_norm_cases, linear_cases, activation_cases, attention_cases,
                  sparse_attention_cases, expert_cases, elementwise_cases, loss_cases, update_cases, composed_cases):  # fmt: skip
        cases()


if __name__ == "__main__":
    main()
