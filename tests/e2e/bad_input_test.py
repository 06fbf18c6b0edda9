"""Bad input is refused before anything starts: one clear error, its exit code, and nothing changed."""
import json
import os
import shutil
import struct

import harness
from harness import BAD_DATA, BAD_RECIPE, IO, USAGE, require, require_equal, require_parts


def refused(t, recipe, code, parts):
    """`accord run recipe` ends with `code` and exactly one error, which has `parts`."""
    before = harness.hashes(t.inputs, t.dir)
    result = t.accord("run", recipe, expect=code)
    error = result.error()
    require_parts(error, parts, "the error")
    require_equal(result.out, "", "standard output")
    require(not os.path.exists(t.path("run")), "a run directory was made")
    require_equal(harness.hashes(t.inputs, t.dir), before, "files")
    require(not harness.processes_with(t.dir), "processes")
    t.note(f"{code}: {error.strip()}".replace(t.dir, "DIR").replace(t.inputs, "INPUTS"))


def own_model(t):
    path = t.path("model")
    shutil.copytree(t.input("model"), path)
    return path


def case_recipe(t):
    path = t.recipe("run")
    good = harness.read(path)
    harness.write(path, "run: {name: run, dir: run\nmodel: [1, 2\n")
    refused(t, path, BAD_RECIPE, [f"{path}:2:"])
    harness.write(path, good.replace('"workers": 2', '"wokers": 2'))
    line = next(i for i, text in enumerate(good.splitlines(), 1) if '"workers": 2' in text)
    refused(t, path, BAD_RECIPE, [f"{path}:{line}:3: ", "wokers"])
    harness.write(path, good.replace('"workers": 2', '"workers": "two"'))
    refused(t, path, BAD_RECIPE, [f"{path}:{line}:", "rollout.workers"])
    harness.write(path, good.replace('"workers": 2', '"workers": 2, "workers": 3'))
    refused(t, path, BAD_RECIPE, [f"{path}:{line}:", "workers"])
    # A feature that is not there is refused, never ignored.
    path = t.recipe("run", {"restart": "workers"})
    refused(t, path, BAD_RECIPE, [f"{path}:", "restart"])
    path = t.recipe("run", {"precision": {"matchers": [{"name": "a", "pattern": "*", "config": "nowhere"}]}})
    refused(t, path, BAD_RECIPE, [f"{path}:", "nowhere"])
    os.remove(path)
    refused(t, path, IO, [path])


def case_data(t):
    path = t.path("train.jsonl")
    recipe = t.recipe("run", {"data.train": {"path": path}})
    refused(t, recipe, IO, [path, "No such file"])
    good = harness.read(t.input("data/train.jsonl")).splitlines()
    bad_lines = {
        "not JSON": (good[2][:-5], "JSON"),
        "no prompt": ('{"label": "3"}', "prompt"),
        "no label": ('{"prompt": "1 + 1 = ?"}', "label"),
        "a prompt that is too long": (json.dumps({"prompt": "1" * 500, "label": "3"}), "64"),
    }
    for bad, part in bad_lines.values():
        harness.write(path, "\n".join(good[:2] + [bad] + good[3:]) + "\n")
        refused(t, recipe, BAD_DATA, [f"{path}:3", part])
    harness.write(path, "")
    refused(t, recipe, BAD_DATA, [path, "no records"])
    os.remove(path)
    os.mkdir(path)
    refused(t, recipe, IO, [path])


def case_parts_and_formats(t):
    data = t.input("data/train.jsonl")
    for part, reason in (("@[42:]", "@[42:] holds none of its 42 records"), ("@[5:5]", "@[5:5] holds none")):
        refused(t, t.recipe("run", {"data.train": {"path": data + part}}), BAD_DATA, [data, reason])
    refused(t, t.recipe("run", {"data.train": {"path": data + "@[a:b]"}}), BAD_RECIPE, ["write @[a:b]"])
    path = harness.write(t.path("train.parquet"), b"PAR1 but nothing else PAR1")
    result = t.accord("run", t.recipe("run", {"data.train": [{"path": data}, {"path": path}]}), expect=None)
    require(result.code in (BAD_DATA, BAD_RECIPE), f"exit code {result.code}")  # by whether Arrow is built in
    require_parts(result.error(), [path], "the error")
    require(not os.path.exists(t.path("run")), "a run directory was made")


def case_chat_template(t):
    path = harness.write(t.path("own.jinja"), "{% for m in messages %}\n{{ m.content + 1 }}{% endfor %}")
    refused(t, t.recipe("run", {"data.chat_template": path}), BAD_DATA, [f"{path}: line 2, column 14: "])
    result = t.accord("plan", t.recipe("run", {"data.chat_template": path}), expect=BAD_DATA)
    require_parts(result.err, [f"data.chat_template: {path}: line 2, column 14: "], "the plan's error")
    harness.write(path, "{% for m in messages %}")
    refused(t, t.recipe("run", {"data.chat_template": path}), BAD_RECIPE, [f"{path}: line 1, column "])
    refused(t, t.recipe("run", {"data.chat_template_kwargs": {"enable_thinking": False}}), BAD_RECIPE,
            ["'chatml' is built in"])


def case_labels_that_nothing_matches(t):
    good = json.dumps({"prompt": "1 + 1 = ?", "label": "2"})
    path = harness.write(t.path("train.jsonl"), good + "\n\n" + good.replace('"2"', '"two"') + "\n")
    refused(t, t.recipe("run", {"data.train": {"path": path}, "reward.type": "math_dapo_integer"}), BAD_DATA,
            [path + ":3: ", "two"])


def case_weights(t):
    model = own_model(t)
    recipe = t.recipe("run", {"model.checkpoint": model})
    path = model + "/model.safetensors"
    good = harness.read(path, "rb")
    harness.write(path, good[:-1000])
    refused(t, recipe, BAD_DATA, [path])
    harness.write(path, good[:100])
    refused(t, recipe, BAD_DATA, [path])
    # A header that promises the right names with another shape.
    swapped = good.replace(b'"shape":[320,64]', b'"shape":[64,320]', 1)
    require(swapped != good, "no tensor of this shape in the file")
    harness.write(path, swapped)
    refused(t, recipe, BAD_DATA, [model, "[64, 320], expected [320, 64]"])
    os.remove(path)
    refused(t, recipe, IO, [model])
    shutil.rmtree(model)
    refused(t, recipe, IO, [model])


def case_weights_that_are_not_finite(t):
    model = own_model(t)
    path = model + "/model.safetensors"
    content = harness.read(path, "rb")
    size = struct.unpack("<Q", content[:8])[0]
    begin = json.loads(content[8:8 + size])["model.norm.weight"]["data_offsets"][0] + 8 + size
    harness.write(path, content[:begin + 6] + b"\xc0\x7f" + content[begin + 8:])  # a BF16 NaN
    error = t.accord("run", t.recipe("run", {"model.checkpoint": model}), expect=BAD_DATA).error()
    require_parts(error, [path, "model.norm.weight", "nan", "element 3"], "the error")
    error = t.accord("generate", model, "--prompt", "1", expect=BAD_DATA).error()
    require_parts(error, [path, "model.norm.weight"], "the error of generate")


def case_plan_sees_the_address(t):
    recipe = t.recipe("run", {"monitor": {"listen": "0.0.0.0:0"}})
    require_parts(t.accord("plan", recipe, expect=USAGE).error(), ["monitor.listen", "loopback"], "the error")


def case_outputs_that_are_inputs(t):
    path = harness.write(t.path("in.jsonl"), json.dumps({"response": "Answer: 3", "label": "3"}) + "\n")
    link = t.path("link.jsonl")
    os.symlink(path, link)
    for out in (path, link):
        error = t.accord("score", "--reward", "math_dapo", path, out, expect=USAGE).error()
        require_parts(error, ["replace the input"], "the error")
    error = t.accord("tokenize", t.input("model"), path, link, expect=USAGE).error()
    require_parts(error, ["replace the input"], "the error")
    data = t.path("holdout.jsonl")
    shutil.copy(t.input("data/holdout.jsonl"), data)
    error = t.accord("eval", t.input("model"), "--data", data, "--reward", "math_dapo", "--output", data,
                     expect=USAGE).error()
    require_parts(error, ["replace the input"], "the error")
    require_equal(harness.read(data), harness.read(t.input("data/holdout.jsonl")), "the data")


def case_numbers(t):
    for seed in ("-1", "010", "1.5", "18446744073709551616"):
        error = t.accord("generate", t.input("model"), "--prompt", "1", "--seed", seed, expect=USAGE).error()
        require_parts(error, ["--seed", seed], "the error")
    t.accord("generate", t.input("model"), "--prompt", "1", "--max-tokens", "1", "--seed", "18446744073709551615")


def case_model_files(t):
    model = own_model(t)
    recipe = t.recipe("run", {"model.checkpoint": model})
    for name, content, code in (("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE"', BAD_DATA),
                                ("tokenizer.json", '{"version": "1.0", "model": {"type": "Unknown"}}', BAD_DATA),
                                ("config.json", '{"model_type": "qwen3_moe"', BAD_DATA),
                                ("config.json", '{"model_type": "no_such_model"}', BAD_DATA)):
        path = f"{model}/{name}"
        good = harness.read(path)
        harness.write(path, content)
        refused(t, recipe, code, [path])
        harness.write(path, good)


def case_addresses(t):
    refused(t, t.recipe("run", {"monitor": {"listen": "0.0.0.0:0"}}), USAGE, ["0.0.0.0:0", "loopback"])


if __name__ == "__main__":
    harness.main(globals())
