"""The measured parts of bench/gpu, each of which appends what it found to the results file, and the table of them all.

    gpu_parts.py PART --pgpt PROGRAM --results FILE [--data FILE] [--quick]        PART: agree attention compile speed decode learn table

A result is a line of JSON: part, name, ok (true, false, or null where nothing is wanted), text; figures that have two sides
also pgpt, torch, ratio, least or most, aim. The newest line of a (part, name) counts. Exit code 1 if a part found something
that must hold and does not; of `table`, if the file has any such, or nothing that must hold.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("PYTHON", "python3")
GIB = float(1 << 30)


class Failure(Exception):
    """What ends a part, in words."""


# ---- results


class Results:
    def __init__(self, path, part):
        self.path, self.part, self.n_failed = pathlib.Path(path), part, 0

    def add(self, name, ok, text, **values):
        self.n_failed += ok is False
        print(f"{'PASS' if ok else 'note' if ok is None else 'FAIL'}  {self.part}: {name}: {text}", flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            json.dump({"part": self.part, "name": name, "ok": ok, "text": text, **values}, file)
            file.write("\n")

    def ratio(self, name, unit, pgpt, torch, ratio, least=None, most=None, aim=None, text=""):
        """A figure against a wanted ratio. torch None: there is no other side to compare with."""
        ok = None
        if ratio is not None and (least is not None or most is not None):
            ok = ratio >= least if least is not None else ratio <= most
        elif torch is None:
            text = text or "nothing to compare with"
        sides = f"{amount(pgpt)} {unit}" + (f" against {amount(torch)}" if torch is not None else "")
        shown = sides + (f": {ratio:.3f} x" if ratio is not None else "") + (f" ({text})" if text else "")
        self.add(name, ok, shown, unit=unit, pgpt=pgpt, torch=torch, ratio=ratio, least=least, most=most, aim=aim, note=text)

    def read(self):
        """The newest of each, in the order of their first appearance."""
        found = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                result = json.loads(line)
                found[result["part"], result["name"]] = result
        return list(found.values())


def amount(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def print_table(results):
    figures = [r for r in results if "ratio" in r]
    print(f"\n{'figure':44} {'pgpt':>12} {'PyTorch':>12} {'ratio':>7} {'wanted':>8} {'aim':>6}")
    for r in figures:
        wanted = f">= {r['least']}" if r["least"] is not None else f"<= {r['most']}" if r["most"] is not None else ""
        ratio = f"{r['ratio']:.3f}" if r["ratio"] is not None else "-"
        verdict = "" if r["ok"] is None else "ok" if r["ok"] else "MISS"
        title = f"{r['name']}, {r['unit']}"
        aim = "" if r["aim"] is None else r["aim"]
        print(f"{title:44} {amount(r['pgpt']):>12} {amount(r['torch']):>12} {ratio:>7} {wanted:>8} {aim:>6} {verdict}")
    print()
    for r in results:
        if "ratio" not in r:
            print(f"{'PASS' if r['ok'] else 'note' if r['ok'] is None else 'FAIL'}  {r['part']}: {r['name']}: {r['text']}")
    failed = [f"{r['part']}: {r['name']}" for r in results if r["ok"] is False]
    n_checked = sum(r["ok"] is not None for r in results)
    print(f"\n{n_checked} results, {len(failed)} do not hold" + (": " + "; ".join(failed) if failed else ""))
    return n_checked > 0 and not failed


# ---- programs


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def run(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-5:])
        raise Failure(f"'{' '.join(map(str, command))}' ended with {result.returncode}:\n{tail}")
    return result.stdout


def torch_command(*words):
    return [PYTHON, str(HERE / "gpu_torch.py"), *map(str, words)]


class UsedMemory:
    """The most device memory in use beyond what was when it began, as the driver counts it; None if nobody says."""

    def __enter__(self):
        self.values, self.process = [], None
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0", "-lms", "100"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self.process.stdout.readline()  # the first is before anything was started
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.base = self.now()
        self.reader.start()
        return self

    def now(self):
        line = self.process.stdout.readline().strip()
        return int(line) if line.isdigit() else None

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.values.append(int(line))

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()

    def bytes(self):
        return (max(self.values) - self.base) * (1 << 20) if self.values and self.base is not None else None


class Peer:
    """gpu_torch.py step, which has compiled its model and measures when it is asked."""

    def __init__(self, *words):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(torch_command("step", *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)  # fmt: skip
        self.words = words

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        raise Failure(f"gpu_torch.py step {' '.join(map(str, self.words))}:\n" + self.errors.read()[-2000:])

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()

    def measure(self, n_steps):
        return self.ask(n_steps)

    def check_attention(self):
        """Does a step call the one that was wanted? After everything else: what has been profiled may be slower since."""
        used, wanted = self.ask("attention")["used_attention"], self.words[3]
        if used and wanted in ("flash", "cuDNN") and used != wanted:
            raise Failure(f"PyTorch was to have attention by {wanted}, and calls {used}'s: empty its cache")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- agree: the same losses on both devices


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "step" in line and "loss" in line]


def measure_agree(call, results):
    """At a rate at which training is smooth. Where losses jump up and down, any rounding grows: with 1e-3 after 5 steps of
    warm-up, two CPU runs that add in a different order are 3e-5 apart after 20 steps, here still 1e-7 after 60."""
    n_steps, B = (20, 2) if call.quick else (100, 8)
    losses, seconds = {}, {}
    for device in ("cuda", "cpu"):
        folder = call.folder / device
        start = time.monotonic()
        run([call.pgpt, "train", "--model", "mini", "--data", call.data, "--batch", B, "--steps", n_steps, "--seed", 1,
             "--lr", 3e-4, "--warmup", 20, "--device", device, "--dtype", "f32", "--eval-every", 0, "--validation", 0, "--sample-tokens", 0, "--quiet",
             "--no-save", "--out", folder])  # fmt: skip
        losses[device], seconds[device] = losses_of(folder), time.monotonic() - start
    differences = [abs(a - b) / abs(b) for a, b in zip(losses["cuda"], losses["cpu"])]
    worst = max(range(n_steps), key=differences.__getitem__)
    ok = len(differences) == n_steps and differences[worst] <= 1e-4
    results.add("mini, f32, both devices", ok,
                f"largest relative difference of {n_steps} losses {differences[worst]:.1e} in step {worst + 1}, wanted 1e-4; "
                f"{differences[0]:.1e} in step 1; "
                f"last losses {losses['cuda'][-1]:.6f} and {losses['cpu'][-1]:.6f}; B={B}, GPU {seconds['cuda']:.0f} s, "
                f"CPU {seconds['cpu']:.0f} s")  # fmt: skip


# ---- speed

# key: title, pgpt's model, B, T, steps of a measurement (pgpt, PyTorch), rounds, least, aim
CASES = {
    "124M": ("gpt2", 64, 1024, 20, 20, 3, 1.0, 1.2),
    "1558M": ("gpt2-xl", 16, 1024, 8, 6, 2, 1.0, 1.15),
    "mini": ("mini", 16, 256, 400, 200, 3, 6.0, 12.0),
}
QUICK_CASES = {"mini": ("mini", 16, 256, 50, 50, 2, 6.0, 12.0)}


def measure_pgpt(call, model, B, T, n_steps):
    command = [call.pgpt, "bench", "step", "--model", model, "--batch", B, "--sequence", T, "--device", "cuda", "--dtype",
               "bf16", "--clip", 1, "--steps", n_steps, "--warmup-steps", max(3, n_steps // 10), "--json"]  # fmt: skip
    with UsedMemory() as used:
        figures = last_json(run(command))
    seconds = figures["seconds"] / n_steps  # the mean, as PyTorch's is; pgpt's own report has the median
    return {**figures, "step_ms": 1e3 * seconds, "tokens_per_s": B * T / seconds, "used_bytes": used.bytes()}


def say_round(who, figures):
    used = figures.get("used_bytes")
    print(f"  {who:22} {figures['tokens_per_s']:12,.0f} tokens/s {figures['step_ms']:9.2f} ms  peak "
          f"{figures['peak_bytes'] / GIB:6.2f} GiB" + (f", device {used / GIB:6.2f} GiB" if used else ""), flush=True)  # fmt: skip


def median_of(rounds, field):
    values = [figures[field] for figures in rounds if figures.get(field) is not None]
    return statistics.median(values) if values else None


def chosen_cases(call):
    cases = QUICK_CASES if call.quick else CASES
    names = [name for name in call.cases.split(",") if name] or list(cases)
    for name in names:
        if name not in cases:
            raise Failure(f"--cases: '{name}' is none of {', '.join(cases)}")
    return {name: cases[name] for name in names}


GRAPHS = "mini, CUDA graphs"


def time_attentions(cases):
    """What PyTorch's fused attentions take, by case; nothing else may be on the GPU."""
    shapes = {",".join(map(str, case[:3])): key for key, case in cases.items()}
    answers = map(json.loads, run(torch_command("attention", *shapes)).strip().splitlines())
    return {shapes[answer["shape"]]: answer for answer in answers}


def measure_attention(call, results):
    for key, answer in time_attentions(chosen_cases(call)).items() if call.has_torch else ():
        times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in answer["ms"].items())
        results.add(key, None, f"PyTorch's is {answer['attention']}'s ({times})", attention=answer["attention"])


def chosen_attentions(results, cases):
    """By case, what the part `attention` has found; if it has not, it is found now."""
    found = {result["name"]: result["attention"] for result in results.read() if "attention" in result}
    if found.keys() >= cases.keys():
        return found
    return {key: answer["attention"] for key, answer in time_attentions(cases).items()}


@contextlib.contextmanager
def compiled_peers(call, results, cases):
    """By case, and `mini` with CUDA graphs too; all compile at the same time. Without PyTorch there are none."""
    peers = {}
    try:
        if call.has_torch:
            attention = chosen_attentions(results, cases)
            peers = {key: Peer(*case[:3], attention[key]) for key, case in cases.items()}
            if "mini" in cases:
                peers[GRAPHS] = Peer(*cases["mini"][:3], attention["mini"], "reduce-overhead")
        for key, peer in peers.items():
            ready = peer.answer()
            print(f"PyTorch, {key}: compiled in {ready['compile_seconds']:.0f} s, attention by {peer.words[3]}, "
                  f"{ready['parameters'] / 1e6:.1f} M parameters", flush=True)  # fmt: skip
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def measure_compile(call, results):
    """Nothing but what PyTorch's cache keeps of it."""
    with compiled_peers(call, results, chosen_cases(call)) as peers:
        for peer in peers.values():
            peer.check_attention()


def measure_case(call, results, key, case, peer, graphs):
    """pgpt and PyTorch take turns; a ratio is taken within a round."""
    model, B, T, n_steps, n_torch_steps, n_rounds, least, aim = case
    ours, theirs, with_graphs = [], [], []
    print(f"{key}: B={B}, T={T}, bf16", flush=True)
    for _ in range(n_rounds):
        ours.append(measure_pgpt(call, model, B, T, n_steps))
        say_round("pgpt", ours[-1])
        if peer:
            theirs.append(peer.measure(n_torch_steps))
            say_round("PyTorch", theirs[-1])
        if graphs:
            with_graphs.append(graphs.measure(n_torch_steps))
            say_round("PyTorch, CUDA graphs", with_graphs[-1])
    for each in filter(None, (peer, graphs)):
        each.check_attention()
    title = f"{key}, B={B}, T={T}"
    speed = median_of(ours, "tokens_per_s")
    ratio = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, theirs)) if theirs else None
    results.ratio(title, "tokens/s", speed, median_of(theirs, "tokens_per_s"), ratio, least=least, aim=aim)
    if with_graphs:
        other = median_of(with_graphs, "tokens_per_s")
        results.ratio(f"{title}, by its CUDA graphs", "tokens/s", speed, other, speed / other, text="mode reduce-overhead")
    if key != "124M":
        return
    planned, allocated = median_of(ours, "peak_bytes") / GIB, theirs and median_of(theirs, "peak_bytes") / GIB
    results.ratio(f"{title}, peak memory", "GiB", planned, allocated or None, planned / allocated if allocated else None,
                  most=0.8, aim=0.55, text="planned and allocated by pgpt; max_memory_allocated of PyTorch")  # fmt: skip
    used, reserved = median_of(ours, "used_bytes"), theirs and median_of(theirs, "reserved_bytes")
    if used:
        results.ratio(f"{title}, device memory", "GiB", used / GIB, reserved / GIB if reserved else None,
                      used / reserved if reserved else None,
                      text="all of pgpt's process, libraries and context too; PyTorch: max_memory_reserved")  # fmt: skip


def measure_speed(call, results):
    cases = chosen_cases(call)
    with compiled_peers(call, results, cases) as peers:
        for key, case in cases.items():
            measure_case(call, results, key, case, peers.get(key), peers.get(GRAPHS) if key == "mini" else None)


# ---- decode


def measure_decode(call, results):
    n_tokens, n_runs = (64, 2) if call.quick else (512, 5)
    command = [call.pgpt, "bench", "generate", "--model", "gpt2", "--tokens", n_tokens, "--runs", n_runs, "--device", "cuda",
               "--dtype", "bf16", "--json"]  # fmt: skip
    figures = last_json(run(command))
    own = figures.get("limit_bytes_per_s")
    copied = None
    if call.has_torch:
        copied = last_json(run(torch_command("info")))["copy_bytes_per_s"]
    limit = copied or own
    if not limit:
        raise Failure("the bandwidth is unknown: neither PyTorch nor pgpt has measured it")
    bound = limit / figures["weight_bytes"]
    text = f"bound: {figures['weight_bytes'] / 1e6:.1f} MB of weights at {limit / 1e12:.2f} TB/s, copied by " + (
        "PyTorch" if copied else "pgpt")  # fmt: skip
    if copied and own:
        text += f"; pgpt says {own / 1e12:.2f} TB/s"
    results.ratio("decode 124M, batch 1, of the bound", "tokens/s", figures["tokens_per_s"], bound,
                  figures["tokens_per_s"] / bound, least=0.6, aim=0.8, text=text)  # fmt: skip


# ---- learn

Learned = collections.namedtuple("Learned", "seed step loss seconds whole_seconds is_reached best")


def say_evaluation(step, loss, seconds):
    print(f"    step {step:5}  val {loss:.4f}  {seconds:7.2f} s", flush=True)


def make_learned(seed, evaluations, target, set_up_seconds):
    """Of (step, loss, seconds): the first that is good enough, else the last."""
    end = next((entry for entry in evaluations if entry[1] <= target), evaluations[-1])
    best = min(loss for _, loss, _ in evaluations)
    return Learned(seed, *end, end[2] + set_up_seconds, end[1] <= target, best)


def follow_pgpt(command, seed, every, target):
    """It says its first step and every evaluation. The clock runs from the first step; what came before is its set-up."""
    start = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pattern = re.compile(r"^step (\d+)/\d+ .*?val ([0-9.]+)")
    ready, evaluations, lines = 0.0, [], []
    for line in process.stdout:
        now = time.monotonic() - start
        lines.append(line)
        if line.startswith("step 1/"):
            ready = now
        found = pattern.match(line)
        if not found or int(found.group(1)) % every:
            continue
        evaluations.append((int(found.group(1)), float(found.group(2)), now - ready))
        say_evaluation(*evaluations[-1])
        if evaluations[-1][1] <= target:
            process.send_signal(signal.SIGINT)  # it saves and ends
            break
    process.stdout.read()
    code = process.wait()
    if code or not evaluations:
        raise Failure(f"'{' '.join(map(str, command))}' ended with {code}:\n" + "".join(lines[-5:]))
    return make_learned(seed, evaluations, target, ready)


def follow_torch(command, seeds, target):
    """What each seed has learned, and in words what it took to get ready."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ready, words, evaluations, lines = 0.0, "", {seed: [] for seed in seeds}, []
    for line in process.stdout:
        lines.append(line)
        if not line.startswith("{"):
            continue
        values = json.loads(line)
        if values.get("ready"):
            ready = time.monotonic() - start
            words = f"its compilation takes {values['compile_seconds']:.1f} s, attention by {values['attention']}"
        else:
            evaluations[values["seed"]].append((values["step"], values["val_loss"], values["seconds"]))
            say_evaluation(*evaluations[values["seed"]][-1])
    if process.wait() or not all(evaluations.values()):
        raise Failure(f"'{' '.join(command)}' failed:\n" + "".join(lines[-10:]))
    return [make_learned(seed, evaluations[seed], target, ready) for seed in seeds], words


def say_learned(who, runs):
    return f"{who} " + ", ".join(
        f"{run.loss:.4f} in step {run.step}" if run.is_reached else f"not in {run.step} steps (best {run.best:.4f})" for run in runs
    )


def measure_learn(call, results):
    """A validation loss dips below the target a hundred steps sooner or later by chance: the median of several seeds
    counts. A run that did not get there counts with all its time."""
    n_steps, every, target = (200, 50, 2.6) if call.quick else (call.learn_steps, 50, 1.475)
    seeds = call.seeds
    ours = []
    for seed in seeds:
        print(f"  pgpt, seed {seed}", flush=True)
        ours.append(follow_pgpt(
            [call.pgpt, "train", "--data", call.data, "--tokenizer", "char", "--layers", 6, "--heads", 6, "--channels", 384,
             "--context", 256, "--batch", 64, "--dropout", 0.2, "--steps", n_steps, "--lr", 1e-3, "--lr-min", 1e-4,
             "--warmup", 100, "--beta2", 0.99, "--weight-decay", 0.1, "--clip", 1, "--eval-every", every, "--eval-batches",
             0, "--sample-tokens", 0, "--log-every", 1 << 30, "--seed", seed, "--device", "cuda", "--dtype", "bf16",
             "--no-save", "--out", call.folder / f"learn-{seed}"], seed, every, target))  # fmt: skip
    n_reached = sum(run.is_reached for run in ours)
    is_reached = 2 * n_reached > len(seeds)
    results.add(f"tinyshakespeare, validation loss {target}", is_reached, say_learned("pgpt", ours) + "; a step takes "
                f"{statistics.median(1e3 * run.seconds / run.step for run in ours):.2f} ms with its share of the evaluations")  # fmt: skip
    our_time = statistics.median(run.seconds for run in ours)
    if not call.has_torch:
        return
    print("  PyTorch", flush=True)
    command = torch_command("learn", call.data, n_steps, every, target, ",".join(map(str, seeds)))
    theirs, words = follow_torch(command, seeds, target)
    their_time = statistics.median(run.seconds for run in theirs)
    per_step = statistics.median(1e3 * run.seconds / run.step for run in theirs)
    results.ratio(f"time to validation loss {target}", "s", our_time, their_time,
                  their_time / our_time if is_reached else None, least=3.0, aim=8.0,
                  text=say_learned("PyTorch", theirs) + f", {per_step:.2f} ms a step; {words}")  # fmt: skip
    results.ratio("the same from the start of the process", "s", ours[0].whole_seconds, theirs[0].whole_seconds,
                  theirs[0].whole_seconds / ours[0].whole_seconds if is_reached else None, text=f"seed {seeds[0]}")  # fmt: skip


# ---- all

PARTS = {"agree": measure_agree, "attention": measure_attention, "compile": measure_compile, "speed": measure_speed,
         "decode": measure_decode, "learn": measure_learn}  # fmt: skip


def numbers(text):
    return [int(word) for word in text.split(",")]


def find_torch():
    """Is there a PyTorch that sees a GPU? If not, why."""
    code = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'PyTorch finds no GPU')"
    try:
        result = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{PYTHON}: {error.strerror}"
    return None if result.returncode == 0 else result.stderr.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "table"])
    parser.add_argument("--pgpt", type=pathlib.Path)
    parser.add_argument("--results", required=True)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--cases", default="", help="speed: only these, with commas between")
    parser.add_argument("--learn-steps", type=int, default=2000)
    parser.add_argument("--seeds", type=numbers, default="1,2,3,4,5", help="learn: with commas between")
    parser.add_argument("--quick", action="store_true")
    call = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended
    results = Results(call.results, call.part)
    if call.part == "table":
        return 0 if print_table(results.read()) else 1
    reason = None if call.part == "agree" else find_torch()
    call.has_torch = not reason
    if reason:
        print(f"bench/gpu: {reason}: pgpt's figures only", flush=True)
    call.folder = pathlib.Path(tempfile.mkdtemp(prefix="pgpt-gpu-"))
    start = time.monotonic()
    try:
        PARTS[call.part](call, results)
        results.add("measurement", True, f"went through in {time.monotonic() - start:.0f} s")
    except Failure as failure:
        print(failure, file=sys.stderr)
        results.add("measurement", False, str(failure).strip().splitlines()[-1])
    finally:
        shutil.rmtree(call.folder, ignore_errors=True)
    return 1 if results.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
