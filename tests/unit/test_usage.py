"""What no command can mean is refused as wrong usage, exit status 2, before anything is read."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from draftrt.cli import group

# Bundles and checkpoints are not there: a command that looks at them first fails with 1.
RUN = ["run", "no-bundle", "--prompt", "a"]
PLAN = ["plan", "no-drafter", "--target", "no-target"]
EXPORT = ["export", "--target", "no-target", "-o", "no-folder/bundle"]
DOCTOR = ["doctor", "acceptance", "no-bundle", "--prompts", "no-prompts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*RUN, "--stop", ""], "'--stop': got an empty text"),
        ([*RUN, "--seed", "-1"], "'--seed': -1 is not in the range"),
        ([*RUN, "--min-tokens", "9", "--max-tokens", "8"], "--min-tokens 9 is more than --max-tok"),
        ([*RUN, "--temperature", "nan"], "'--temperature': got nan, expected a finite number"),
        ([*RUN, "--temperature", "inf"], "'--temperature': got inf, expected a finite number"),
        ([*RUN, "--top-p", "nan"], "'--top-p': got nan"),
        ([*RUN, "--min-p", "nan"], "'--min-p': got nan"),
        ([*RUN, "--repetition-penalty", "inf"], "'--repetition-penalty': got inf"),
        ([*RUN, "--confidence-threshold", "nan"], "'--confidence-threshold': got nan"),
        ([*DOCTOR, "--expected-length", "nan"], "'--expected-length': got nan"),
        (["validate", "ranges", "no-bundle", "--features", "inf"], "'--features': got inf"),
        (["build", "no-bundle", "--sm", "86", "--timeout", "nan"], "'--timeout': got nan"),
        (["build", "no-bundle", "--device", "T5"], "--device 'T5' is not known, expected one of"),
        ([*PLAN, "--device", "T5"], "--device 'T5' is not known, expected one of orin-nano-8gb"),
        ([*PLAN, "--device", ""], "--device '' is not known, expected one of orin-nano-8gb"),
        ([*PLAN, "--quantize", "nvfp4"], "got nvfp4, expected one of ['int8', 'int4', 'fp8']"),
        (["engine", *PLAN[1:], "-o", "no-folder/b", "--sm", "7"], "got SM7, expected of tensorrt"),
        (["bench", "no-bundle", "--draft", "no-drafter"], "--draft goes with --rivals"),
        ([*EXPORT, "--outputs", "logits", "--sampled"], "got --outputs, --sampled without DRAFT"),
        (
            [*RUN, "--threads", "9999999999"],
            "'--threads': 9999999999 is not in the range 1<=x<=1024",
        ),
        (["bench", "no-bundle", "--threads", "9999999999"], "is not in the range 1<=x<=1024"),
        (
            ["engine", *PLAN[1:], "-o", "no-folder/b", "--prompt", ""],
            "--prompt': got an empty",
        ),
        ([*EXPORT, "--ignore-key", "a"], "got --ignore-key without DRAFT"),
        ([*EXPORT, "--no-sample-from-anchor"], "got --sample-from-anchor without DRAFT"),
        ([*EXPORT, "--no-target-graph"], "got --no-target-graph without DRAFT"),
    ],
)
def test_wrong_usage_is_exit_status_2(words: list[str], said: str) -> None:
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_numbers_in_range_are_taken() -> None:
    numbers = ["--temperature", "0.5", "--top-p", "1", "--min-p", "0", "--repetition-penalty", "2"]
    done = CliRunner().invoke(group, [*RUN, *numbers, "--seed", "0", "--stop", "x"])
    assert done.exit_code == 1, done.output
    assert "no-bundle: no manifest.json there" in done.stderr
