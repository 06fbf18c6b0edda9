"""The trainer computes the log-probs that the rollout workers drew with, bit for bit, although both lay out
their batches differently; and the check notices a single changed byte."""
import json

import harness
from harness import require, require_equal

# Sizes that share no factor with the group size or with each other, so that no trainer micro-batch looks
# like a rollout batch.
ODD = {"rollout.max_batch_rows": 23, "rollout.prefill_chunk": 11, "trainer.tokens_per_microbatch": 101}
BF16 = {"configs": {"bf16": {"format": "bf16"}},
        "matchers": [{"name": "all", "pattern": "*", "config": "bf16"}]}


def check_equal(t, plan_name, plan, dtype):
    run = t.train(f"{plan_name}-{dtype}", {**ODD, "precision": plan, "model.compute_dtype": dtype})
    steps = run.steps()
    require_equal(sorted(steps), [1, 2, 3, 4], "steps")
    forwards = run.rollout_forwards()
    for step, row in steps.items():
        what = f"{plan_name}, {dtype}, step {step}"
        require_equal(row["mismatch/equal_fraction"], 1, f"{what}: equal_fraction")
        for name in ("logprob_abs_diff_max", "logprob_abs_diff_mean", "kl_k1", "kl_k3"):
            require_equal(row["mismatch/" + name], 0, f"{what}: {name}")
        # 8 prompts of 4 samples, of about 20 tokens each, take several batches on either side.
        require(row["train/microbatches"] >= 4, f"{what}: only {row['train/microbatches']} micro-batches")
        require(forwards[step] >= 20, f"{what}: only {forwards[step]} rollout forwards")
        require(forwards[step] != row["train/microbatches"], f"{what}: both sides took as many batches")
    ledger = run.ledger()
    require(sum(a != b for a, b in zip(ledger, ledger[1:])) >= 2, "too few steps changed the weights")
    tokens = sum(row["rollout/response_length_mean"] * 32 for row in steps.values())
    t.note(f"{plan_name} weights, {dtype} compute: {tokens:.0f} of {tokens:.0f} log-probs equal; per step "
           f"{[int(row['train/microbatches']) for row in steps.values()]} micro-batches, "
           f"{[forwards[step] for step in steps]} rollout forwards")
    return run


def case_mxfp8_bfloat16(t):
    check_equal(t, "mxfp8", harness.MXFP8, "bfloat16")


def case_mxfp8_float32(t):
    check_equal(t, "mxfp8", harness.MXFP8, "float32")


def case_nvfp4_bfloat16(t):
    # The experts in NVFP4 as in that quickstart, the other linear layers in MXFP8: three formats at once.
    check_equal(t, "nvfp4", {"configs": {"nvfp4": {"format": "nvfp4"}, "mxfp8": {"format": "mxfp8"}},
                             "matchers": [{"name": "experts", "pattern": "*.mlp.experts.*", "config": "nvfp4"},
                                          {"name": "rest", "pattern": "*", "config": "mxfp8"}]}, "bfloat16")


def case_four_over_six(t):
    """All linear layers in NVFP4, block scales chosen between 4 and 6 on both sides."""
    nvfp4 = {"format": "nvfp4", "four_over_six": "all", "four_over_six_error": "mae", "four_over_six_range": 256}
    plans = {"plain": {"format": "nvfp4"}, "four-over-six": nvfp4, "weights": {**nvfp4, "four_over_six": "weights"}}
    ledgers = [check_equal(t, name, {"configs": {"nvfp4": config}, "backward": "dequantized",
                                     "matchers": [{"name": "all", "pattern": "*", "config": "nvfp4"}]},
                           "bfloat16").ledger() for name, config in plans.items()]
    require(ledgers[0][0] != ledgers[1][0], "four over six changed no weight")
    require_equal(ledgers[1][0], ledgers[2][0], "the same weights, whatever the activations")
    require(ledgers[1][1] != ledgers[2][1], "four over six of activations changed nothing")
    # A single process computes with the run's plan, too.
    for name in plans:
        t.accord("generate", t.input("model"), "--prompt", "1 + 1 = ?", "--max-tokens", "4", "--temperature", "0",
                 "--recipe", t.path(name + "-bfloat16.yaml"))


def case_bf16_bfloat16(t):
    check_equal(t, "bf16", BF16, "bfloat16")


def case_bf16_float32(t):
    check_equal(t, "bf16", BF16, "float32")


def first_token_of_every_prompt(t):
    messages = {"messages": [{"role": "user", "content": "1 + 1 = ?"}]}
    harness.write(t.path("in.jsonl"), json.dumps(messages) + "\n")
    out = t.accord("tokenize", t.input("model"), t.path("in.jsonl"), "-", "--chat-template", "chatml").out
    return json.loads(out)["ids"][0]


def check_corruption(t, name, byte, changes=None):
    """Worker 1 of 2 serves version 2 (step 3 draws with it) with one bit flipped."""
    run = t.train(name, {**(changes or {}), "run.steps": 5, "debug.corrupt_rollout":
                         {"rank": 1, "version": 2, "byte": byte}})
    equal = {step: row["mismatch/equal_fraction"] for step, row in run.steps().items()}
    for step in (1, 2, 4, 5):
        require_equal(equal[step], 1, f"{name}: equal_fraction of step {step}")
    require(equal[3] < 1, f"{name}: the flipped bit of byte {byte} went unnoticed")
    # The other worker's half of the samples agrees.
    require(equal[3] > 0.3, f"{name}: equal_fraction of step 3 is {equal[3]}, but half of the samples are sound")
    require(run.steps()[3]["mismatch/logprob_abs_diff_max"] > 0, f"{name}: no difference was measured")
    require("was changed on purpose" in harness.read(run.file("logs/rollout-1.log")), "no word in the log")
    t.note(f"{name}, byte {byte} on rollout/1 at version 2: equal_fraction by step {equal}, largest difference "
           f"{run.steps()[3]['mismatch/logprob_abs_diff_max']:.3g}")


def case_corrupted_embedding(t):
    # The embedding comes first in the arena, in bf16: the low byte of one element of a row that every prompt
    # begins with.
    hidden = 64
    check_corruption(t, "embedding", first_token_of_every_prompt(t) * hidden * 2 + 2 * 7)


def case_corrupted_quantized_weight(t):
    # Embedding, then the first layer's input norm, then its q_proj, each on a 256-byte boundary.
    config = json.loads(harness.read(t.input("model/config.json")))
    embedding = config["vocab_size"] * config["hidden_size"] * 2
    norm = config["hidden_size"] * 2
    q_proj = sum(-(-size // 256) * 256 for size in (embedding, norm))
    check_corruption(t, "q_proj", q_proj + 5)


if __name__ == "__main__":
    harness.main(globals())
