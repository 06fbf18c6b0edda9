"""What the end-to-end tests share: a tiny model and its data, runs of the program, and comparisons.

A test file holds functions `case_<name>(t)`, t being a Test, and ends with `harness.main(globals())`. A case
fails by raising; what it measured it hands to t.note(). Standard library only.
"""
import argparse
import contextlib
import copy
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

SOURCE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TIME_FACTOR = float(os.environ.get("ACCORD_TIME_FACTOR", "1"))  # of sanitizer builds; tests/CMakeLists.txt sets it
DEVICE = os.environ.get("ACCORD_E2E_DEVICE", "")  # of both pools in recipes that say nothing about it; empty: auto
PATIENCE = 180 * TIME_FACTOR  # seconds that a command or a wait may take on a busy machine before the test gives up

# The exit codes of docs/interfaces.md.
USAGE, BAD_DATA, UNAVAILABLE, WORKER_LOST, RUN_LOCKED, IO, DRAINED, BAD_RECIPE = 64, 65, 69, 71, 73, 74, 75, 78

MXFP8 = {
    "configs": {"mxfp8": {"format": "mxfp8"}},
    "matchers": [{"name": "all-linear", "pattern": "*", "config": "mxfp8"}],
    "backward": "high_precision",
}

# 8 prompts of 4 samples; 42 training prompts, so that step 6 crosses an epoch.
RECIPE = {
    "run": {"seed": 42, "steps": 4},
    "model": {"compute_dtype": "bfloat16"},
    "data": {"chat_template": "chatml"},
    "reward": {"type": "math_dapo"},
    "rollout": {"workers": 2, "threads": 1, "prompts_per_step": 8, "samples_per_prompt": 4,
                "max_prompt_tokens": 64, "max_response_tokens": 12, "temperature": 1.0},
    "trainer": {"workers": 1, "threads": 1, "tokens_per_microbatch": 256,
                "optimizer": {"lr": 1.0e-3, "betas": [0.9, 0.98], "weight_decay": 0.0}},
    "precision": MXFP8,
    "checkpoint": {"every": 2, "keep": 0, "save_hf": True},
}


def require(condition, message):
    if not condition:
        raise AssertionError(message)


def require_equal(got, expected, what):
    require(got == expected, f"{what}: {shorten(got)} where {shorten(expected)} was expected")


def require_parts(text, parts, what):
    for part in parts:
        require(part in text, f"{what}: '{part}' is missing in:\n{text}")


def shorten(value, limit=300):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def wait_for(condition, what, timeout=PATIENCE, interval=0.02):
    """Returns the first true value of condition(), and raises when there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        require(time.monotonic() < deadline, f"waited {timeout} s in vain for {what}")
        time.sleep(interval)


def read(path, mode="r"):
    with open(path, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as file:
        return file.read()


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)
    return path


def read_jsonl(path):
    return [json.loads(line) for line in read(path).splitlines()]


def hashes(*paths):
    """{file: digest} of the files below the given files and directories."""
    found = {}
    for path in paths:
        files = [path] if os.path.isfile(path) else glob.glob(path + "/**/*", recursive=True)
        for name in sorted(files):
            if os.path.isfile(name):
                found[name] = hashlib.sha256(read(name, "rb")).hexdigest()
    return found


def flip_byte(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    content = read(path, "rb")
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    data = content[8 + size:]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def write_safetensors_i32(path, name, shape, values):
    data = struct.pack(f"<{len(values)}i", *values)
    header = json.dumps({name: {"dtype": "I32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    return write(path, struct.pack("<Q", len(header)) + header + data)


def processes_with(text):
    """{pid: command line} of the processes whose command line holds `text`, this one aside."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                line = read(f"/proc/{entry}/cmdline", "rb").replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # ended meanwhile
            if text in line:
                found[int(entry)] = line.strip()
    return found


@contextlib.contextmanager
def environment(**variables):
    """Environment variables of the programs that start meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def collect_sanitizer_reports(directory):
    """From now on the sanitizers of all processes, workers too, report into files there."""
    for name in ("TSAN_OPTIONS", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS"):
        kept = [option for option in os.environ.get(name, "").split(":") if option and "log_path=" not in option]
        os.environ[name] = ":".join([*kept, f"log_path={directory}/sanitizer"])


def require_no_sanitizer_reports(directory):
    reports = [read(path) for path in sorted(glob.glob(directory + "/sanitizer.*"))]
    require(not reports, f"{len(reports)} processes with sanitizer reports; the first:\n{''.join(reports[:1])}")


class Run:
    """A run directory."""

    def __init__(self, path):
        self.path = path

    def file(self, name):
        return os.path.join(self.path, name)

    def metrics(self):
        return read_jsonl(self.file("metrics.jsonl"))

    def steps(self):
        """{step: metrics} of the steps, without line 0."""
        return {row["step"]: row for row in self.metrics() if row["step"] > 0}

    def stable_lines(self):
        """The lines of metrics.jsonl without what depends on the clock: time/* and *_per_second."""
        clock = r',"(?:time/[^"]*|[^"]*_per_second)":(?:"[^"]*"|[^,}]*)'
        return [re.sub(clock, "", line) for line in read(self.file("metrics.jsonl")).splitlines()]

    def ledger(self):
        """[[(tensor, digest)]] by version."""
        return [[(t["name"], t["digest"]) for t in line["tensors"]]
                for line in read_jsonl(self.file("ledger.jsonl"))]

    def samples(self, step):
        return read_jsonl(self.file(f"samples/step_{step:06}.jsonl"))

    def prompt_ids(self, step):
        """Of the samples that are written out: the first 16."""
        return list(dict.fromkeys(sample["prompt_id"] for sample in self.samples(step)))

    def checkpoint(self, step):
        return self.file(f"checkpoints/step_{step}")

    def weights(self, step):
        return read(self.checkpoint(step) + "/hf/model.safetensors", "rb")

    def rollout_forwards(self):
        """{step: forwards of all rollout workers}, from their logs."""
        total = {}
        for path in glob.glob(self.file("logs/rollout-*.log")):
            for step, forwards in re.findall(r"step (\d+): .* tokens in (\d+) forwards", read(path)):
                total[int(step)] = total.get(int(step), 0) + int(forwards)
        return total


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def error(self):
        """The one error that the program printed, and nothing else besides its log."""
        begin = self.err.find("accord: error: ")
        require(begin >= 0 and self.err.count("accord: error: ") == 1, f"not exactly one error in:\n{self.err}")
        noise = [line for line in self.err[:begin].splitlines() if not re.search(r" (info|warning) ", line)]
        require(not noise, f"more than the log and the error: {noise}")
        return self.err[begin:]


class Process:
    """The program in the background; its output goes to a file."""

    def __init__(self, arguments, log_path):
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.popen = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.popen.pid

    def log(self):
        return read(self.log_path)

    def running(self):
        return self.popen.poll() is None

    def address(self):
        """Where the controller listens, once it does."""
        def find():
            found = re.search(r"status on (\S+:\d+)", self.log())
            require(found or self.running(), f"the controller ended early:\n{self.log()}")
            return found
        return wait_for(find, "the controller's address").group(1)

    def wait(self, expect, timeout=PATIENCE):
        """Seconds until the process ended, with that exit code."""
        begin = time.monotonic()
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout} s:\n{self.log()}") from None
        require(code == expect, f"exit code {code}, expected {expect}:\n{self.log()}")
        return time.monotonic() - begin

    def kill(self):
        if self.running():
            self.popen.kill()
        self.popen.wait()


class Test:
    """One case: a temporary directory, the inputs, the program."""

    def __init__(self, program, inputs, directory):
        self.program, self.inputs, self.dir = program, inputs, directory
        self.processes = []
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def path(self, name):
        return os.path.join(self.dir, name)

    def input(self, name):
        return os.path.join(self.inputs, name)

    def recipe(self, name, changes=None):
        """Writes RECIPE with `changes` ({"rollout.workers": 4}) for the run directory `name`; JSON is YAML."""
        recipe = copy.deepcopy(RECIPE)
        recipe["run"].update(name=name, dir=self.path(name))
        recipe["model"]["checkpoint"] = self.input("model")
        recipe["data"]["train"] = {"path": self.input("data/train.jsonl")}
        for key, value in (changes or {}).items():
            *parents, last = key.split(".")
            node = recipe
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        pools = [recipe["rollout"], recipe["trainer"]]
        if (DEVICE and not any("device" in pool for pool in pools) and recipe["trainer"].get("expert_parallel", 1) == 1
                and recipe["model"]["compute_dtype"] == "bfloat16"):
            for pool in pools:
                pool["device"] = DEVICE
        return write(self.path(name + ".yaml"), json.dumps(recipe, indent=1))

    def accord(self, *arguments, expect=0, timeout=PATIENCE):
        begin = time.monotonic()
        done = subprocess.run([self.program, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=timeout, cwd=self.dir, check=False)
        result = Result(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)
        require(expect is None or result.code == expect,  # None: the caller looks at it
                f"accord {' '.join(arguments)}: exit code {result.code}, expected {expect}:\n{result.err}")
        return result

    def train(self, name, changes=None, arguments=()):
        """`accord run` to its end."""
        self.accord("run", self.recipe(name, changes), *arguments)
        return Run(self.path(name))

    def start(self, *arguments):
        """The program in the background; killed at the end of the case if it still runs."""
        if DEVICE and arguments[0] == "worker" and "--device" not in arguments:
            arguments += ("--device", DEVICE)
        log_path = self.path(f"process-{len(self.processes)}.log")
        self.processes.append(Process([self.program, *arguments], log_path))
        return self.processes[-1]

    def start_run(self, name, changes=None, arguments=()):
        process = self.start("run", self.recipe(name, changes), *arguments)
        return process, Run(self.path(name))

    def status(self, address):
        return json.loads(self.accord("status", address, "--json").out)

    def wait_status(self, address, condition, what):
        """The first status that `condition` holds for."""
        def look():
            status = self.status(address)
            return status if condition(status) else None
        return wait_for(look, what)

    def close(self):
        for process in self.processes:
            process.kill()


def make_inputs(program, directory):
    """A tiny Qwen3-MoE after a short warm start (its answers are sometimes right, so that there is something
    to learn), its tokenizer, the untrained model, and data."""
    scratch = directory + ".tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    collect_sanitizer_reports(scratch)
    quickstart = os.path.join(SOURCE, "configs/quickstart")
    data = os.path.join(scratch, "data")
    subprocess.run([sys.executable, os.path.join(SOURCE, "scripts/make_arithmetic.py"), data, "--first", "10",
                    "--second", "5", "--holdout", "8", "--demonstrations", "4"], check=True, timeout=PATIENCE,
                   stdout=subprocess.DEVNULL)
    untrained = os.path.join(scratch, "untrained")
    subprocess.run([program, "init-model", quickstart + "/config.json", untrained, "--seed", "1",
                    "--tokenizer", quickstart + "/tokenizer"], check=True, timeout=PATIENCE,
                   stderr=subprocess.DEVNULL)
    t = Test(program, scratch, scratch)
    warm = t.train("warm", {
        "run.steps": 1, "model.checkpoint": untrained, "trainer.optimizer.lr": 0.0,
        "sft": {"path": data + "/sft.jsonl", "steps": 60, "batch_size": 32,
                "optimizer": {"lr": 3.0e-3, "warmup_steps": 20, "betas": [0.9, 0.95], "weight_decay": 0.0}}})
    os.rename(warm.checkpoint(1) + "/hf", os.path.join(scratch, "model"))
    shutil.rmtree(warm.path)
    require_no_sanitizer_reports(scratch)
    shutil.rmtree(directory, ignore_errors=True)
    os.rename(scratch, directory)


def main(names):
    parser = argparse.ArgumentParser(description=names["__doc__"])
    parser.add_argument("program", help="path of the accord program")
    parser.add_argument("--inputs", help="directory with the shared inputs (make_inputs.py); made when not given")
    parser.add_argument("--case", action="append", help="run this case only (repeatable)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    arguments = parser.parse_args()
    cases = {name[len("case_"):]: f for name, f in names.items() if name.startswith("case_")}
    unknown = set(arguments.case or ()) - set(cases)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are: {', '.join(cases)}")

    # SIGTERM (a test runner's time limit) unwinds, so that children and files go away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    program = os.path.abspath(arguments.program)
    root = tempfile.mkdtemp(prefix="accord-e2e-")
    failed = []
    try:
        inputs = arguments.inputs and os.path.abspath(arguments.inputs)
        if not inputs:
            inputs = os.path.join(root, "inputs")
            make_inputs(program, inputs)
        for name, function in cases.items():
            if arguments.case and name not in arguments.case:
                continue
            directory = os.path.join(root, name)
            os.makedirs(directory)
            test = Test(program, inputs, directory)
            begin = time.monotonic()
            collect_sanitizer_reports(directory)
            try:
                function(test)
                require_no_sanitizer_reports(directory)
                outcome = "ok"
            except Exception as error:  # pylint: disable=broad-except
                failed.append(name)
                outcome = "FAILED"
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
                test.note(str(error))
            finally:
                test.close()
            print(f"{outcome} {name} ({time.monotonic() - begin:.1f} s)", flush=True)
            for note in test.notes:
                print("   " + note.replace("\n", "\n   "), flush=True)
    finally:
        if arguments.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if failed else 0)
