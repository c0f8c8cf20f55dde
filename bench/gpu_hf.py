"""pgpt in bf16 against a GPT-2 of `transformers` on the same GPU: logits, and a curve of losses.

    gpu_hf.py --pgpt PROGRAM --dump PROGRAM --results FILE --data FILE [--quick]

The model has the shape of GPT-2 124M. Nothing is downloaded: it begins with random weights (seeded) and is trained on the
bytes of the text for a while, so that its logits are a real model's. Then
  - pgpt's bf16 logits, by both of its ways (dump_logits.c), may be 1.2 times as far from the f32 logits as those of PyTorch's
    model.to(bfloat16) are, in the mean and at the worst;
  - pgpt and PyTorch (f32 weights under bf16 autocast, the same AdamW, schedule and clipping) train on from the saved weights
    over the same batches: every loss of the two must be within 0.02;
  - a small Llama and a small Mixtral with random weights: pgpt's f32 logits on the CPU and on the GPU, by both ways, are
    PyTorch's within 1e-4; a folder that went through pgpt and back has the same tensors, and transformers loads it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import gpu_data
from gpu_parts import Results

try:
    import torch
    import transformers
    from gpu_torch import autocast, make_optimizer, rate_at
except ImportError as missing:
    print(f"PyTorch or transformers is missing ({missing})", file=sys.stderr)
    sys.exit(3)

BYTES = '{"pgpt_tokenizer":1,"kind":"byte"}\n'
SEED, LR, LR_MIN, N_WARMUP, BETA2, DECAY = 1, 3e-4, 3e-5, 20, 0.99, 0.1
MOST_TIMES, MOST_LOSS = 1.2, 0.02


def run(command, data=None):
    result = subprocess.run([str(word) for word in command], input=data, capture_output=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stderr.decode(errors='replace')[-2000:]}")
    return result.stdout


class Batches:
    """The batches of a run of pgpt with this seed."""

    def __init__(self, text, n_steps, B, T):
        self.tokens = torch.tensor(text.tokens, device="cuda")
        starts = text.starts(n_steps * B, T, SEED).reshape(n_steps, B)
        self.starts = torch.from_numpy(starts).cuda()
        self.window = torch.arange(T + 1, device="cuda")

    def rows(self, i):
        return self.tokens[self.starts[i][:, None] + self.window]


def train(model, batches, n_steps):
    """The loss before each step."""
    model.train()
    optimizer = make_optimizer(model, LR, BETA2, DECAY)
    parameters, losses = list(model.parameters()), []
    for i in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(i, n_steps, LR, LR_MIN, N_WARMUP)
        rows = batches.rows(i)
        with autocast():
            logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def make_model(folder, text, call):
    """A GPT-2 that has learned something, saved as transformers does."""
    torch.manual_seed(SEED)
    size = {"n_layer": 3, "n_head": 4, "n_embd": 256} if call.quick else {}
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **size)
    model = transformers.GPT2LMHeadModel(config).cuda()
    n_steps = 30 if call.quick else 150
    losses = train(model, Batches(text, n_steps, call.B, call.T), n_steps)
    model.save_pretrained(folder)
    (folder / "pgpt_tokenizer.json").write_text(BYTES)
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"  a GPT-2 of {n_parameters / 1e6:.1f} M parameters, vocabulary {config.vocab_size}, trained for {n_steps} steps: "
          f"loss {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)  # fmt: skip
    return model


# ---- logits


def pgpt_logits(call, folder, tokens, dtype, way, n_vocabulary):
    out = run([call.dump, folder, *tokens.shape, "cuda", dtype, way], data=tokens.to(torch.int32).cpu().numpy().tobytes())
    return torch.frombuffer(bytearray(out), dtype=torch.float32).view(*tokens.shape, n_vocabulary).cuda()


def loss_of(logits, tokens):
    """Of each token from those before it."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten()).item()


def distance(logits, exact):
    difference = (logits.float() - exact).abs()
    return {"mean": difference.mean().item(), "max": difference.max().item()}


@torch.no_grad()
def check_logits(call, results, model, folder, text):
    B, T = (2, 64) if call.quick else (4, 256)
    held_out = torch.tensor(text.tokens[text.n_train :][: B * T]).view(B, T).cuda()
    torch.set_float32_matmul_precision("highest")
    model.eval()
    exact = model(held_out).logits
    V = exact.shape[-1]
    with autocast():
        mixed = loss_of(model(held_out).logits, held_out)
    rounded = model.to(torch.bfloat16)(held_out).logits
    theirs = distance(rounded, exact)
    print(f"  loss there: f32 {loss_of(exact, held_out):.5f}, autocast {mixed:.5f}, bf16 {loss_of(rounded, held_out):.5f}")
    print(f"  f32 logits of {B} x {T} tokens: from {exact.min().item():.2f} to {exact.max().item():.2f}; PyTorch's bf16 is off "
          f"by {theirs['mean']:.4g} in the mean, {theirs['max']:.4g} at the worst", flush=True)  # fmt: skip
    for way in ("whole", "decode"):
        same = distance(pgpt_logits(call, folder, held_out, "f32", way, V), exact)
        scale = exact.abs().max().item()
        results.add(f"f32 logits, {way}", same["max"] <= 1e-4 * scale,
                    f"off PyTorch's by {same['max']:.2e} at the worst, of {scale:.1f}; wanted 1e-4 of that")  # fmt: skip
        logits = pgpt_logits(call, folder, held_out, "bf16", way, V)
        ours = distance(logits, exact)
        print(f"  loss there by pgpt's bf16, {way}: {loss_of(logits, held_out):.5f}")
        for kind in ("mean", "max"):
            times = ours[kind] / theirs[kind]
            results.add(f"bf16 logits, {way}, {kind}", times <= MOST_TIMES,
                        f"{ours[kind]:.4g} from the f32 logits, PyTorch's {theirs[kind]:.4g}: {times:.3f} x, wanted 1.2")  # fmt: skip


# ---- losses


def check_losses(call, results, folder, text):
    n_steps = 20 if call.quick else 200
    out = folder.parent / "run"
    start = time.monotonic()
    run([call.pgpt, "train", "--init", folder, "--data", call.data, "--batch", call.B, "--sequence", call.T, "--steps", n_steps,
         "--lr", LR, "--lr-min", LR_MIN, "--warmup", N_WARMUP, "--beta2", BETA2, "--weight-decay", DECAY, "--clip", 1,
         "--seed", SEED, "--eval-every", 0, "--eval-batches", 1, "--sample-tokens", 0, "--quiet", "--device", "cuda", "--dtype",
         "bf16", "--no-save", "--out", out])  # fmt: skip
    our_seconds = time.monotonic() - start
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    ours = [line["loss"] for line in lines if "step" in line]
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).cuda()
    theirs = train(model, Batches(text, n_steps, call.B, call.T), n_steps)
    differences = [abs(a - b) for a, b in zip(ours, theirs)]
    worst = max(range(len(differences)), key=differences.__getitem__)
    results.add(f"{n_steps} losses in bf16", len(ours) == n_steps and differences[worst] <= MOST_LOSS,
                f"at most {differences[worst]:.4f} apart, in step {worst + 1} (mean {sum(differences) / len(differences):.5f}), "
                f"wanted {MOST_LOSS}; first {ours[0]:.5f} and {theirs[0]:.5f}, last {ours[-1]:.4f} and {theirs[-1]:.4f}; "
                f"pgpt's run took {our_seconds:.0f} s")  # fmt: skip


# ---- other layouts

LLAMA = {"hidden_size": 96, "intermediate_size": 168, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "vocab_size": 321, "rms_norm_eps": 1e-5, "initializer_range": 0.1,
         "tie_word_embeddings": False}  # fmt: skip


@torch.no_grad()
def check_layout(call, results, place, name, model):
    """A model of transformers, read by pgpt, written again by it and read by transformers."""
    torch.set_float32_matmul_precision("highest")
    theirs, ours, again = place / name, place / f"{name}-ours", place / f"{name}-again"
    model.eval().save_pretrained(theirs)
    (theirs / "pgpt_tokenizer.json").write_text(BYTES)
    tokens = torch.randint(0, 256, (3, 37), generator=torch.Generator().manual_seed(SEED))
    exact = model(tokens).logits.cuda()
    for device in ("cpu", "cuda"):
        for way in ("whole", "decode"):
            out = run([call.dump, theirs, *tokens.shape, device, "f32", way], data=tokens.to(torch.int32).numpy().tobytes())
            logits = torch.frombuffer(bytearray(out), dtype=torch.float32).view_as(exact).cuda()
            worst = distance(logits, exact)["max"]
            results.add(f"{name}, {device}, {way}", worst <= 1e-4,
                        f"f32 logits off PyTorch's by {worst:.2e} at the worst, of {exact.abs().max().item():.1f}; wanted 1e-4")  # fmt: skip
    run([call.pgpt, "convert", theirs, ours])
    run([call.pgpt, "convert", ours, again])
    before, after = model.state_dict(), type(model).from_pretrained(again).state_dict()
    same = before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    results.add(f"{name}, there and back", same, f"{len(before)} tensors of transformers, {'equal' if same else 'NOT equal'}")


def check_layouts(call, results, place):
    torch.manual_seed(SEED)
    check_layout(call, results, place, "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    config = transformers.MixtralConfig(num_local_experts=8, num_experts_per_tok=2, sliding_window=None, **LLAMA)
    check_layout(call, results, place, "mixtral", transformers.MixtralForCausalLM(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pgpt", type=pathlib.Path, required=True)
    parser.add_argument("--dump", type=pathlib.Path, required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true")
    call = parser.parse_args()
    call.B, call.T = (4, 128) if call.quick else (16, 256)
    results = Results(call.results, "hf")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    torch.set_float32_matmul_precision("high")
    text = gpu_data.Text.read(call.data, "byte")
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="pgpt-gpu-hf-") as place:
            folder = pathlib.Path(place) / "model"
            model = make_model(folder, text, call)
            check_losses(call, results, folder, text)
            check_logits(call, results, model, folder, text)
            check_layouts(call, results, pathlib.Path(place))
        results.add("measurement", True, f"went through in {time.monotonic() - start:.0f} s")
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        results.add("measurement", False, str(error).strip().splitlines()[-1])
    return 1 if results.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
