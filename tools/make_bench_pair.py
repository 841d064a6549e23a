"""Make the pair that the scheduler's benchmarks serve: the test fixture, widened to 23 million parameters.

    python tools/make_bench_pair.py --out /tmp/bench-pair

A few seconds on one core. The pair answers as the fixture does (``sgl_dspark/demo/widen.py``), so it accepts drafts as
a trained pair does, while its steps take the time of a dense model of its size: twelve layers of width 384. Beside it:
``prompts.jsonl``, the built-in prompts of ``dspark bench`` (maths, code, chat: unlike what the fixture was trained on,
hard to draft) and as many worked questions of the fixture's own kinds (easy to draft), together an accept length of
about 3; and ``calibration.jsonl``, others of both sorts for ``dspark calibrate``.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import torch

from sgl_dspark.data.lines import numbered, to_line
from sgl_dspark.data.sources import prompts as demo_prompts
from sgl_dspark.demo.fixture_text import WRITERS, conversations
from sgl_dspark.demo.widen import widen_draft, widen_target
from sgl_dspark.model.target import KeyValueCache, TargetModel

FIXTURE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "pair"
FACTOR, NOISE, NOISE_SEED = 3, 0.0, 0
# Far from the seeds of the fixture's training, held-out and test prompts.
PROMPT_SEED, PROMPTS = 4_000_000, 144
CALIBRATION_SEED, CALIBRATION_PROMPTS = 5_000_000, 270
BUILT_IN = Path(__file__).resolve().parents[1] / "sgl_dspark" / "data" / "prompt_set.jsonl"
SORTS = {
    "gsm_symbolic": "maths",
    "chain_sum": "maths",
    "leg_counting": "maths",
    "simple_equations": "maths",
    "simple_geometry": "maths",
    "syllogism": "logic",
    "calendar_arithmetic": "logic",
    "word_sorting": "words",
    "word_sequence_reversal": "words",
}
TOLERANCE = 1e-3


def largest_difference(narrow: Path, wide: Path) -> float:
    """Return the largest absolute difference of two targets' fp32 logits over a fixed sequence."""
    found = []
    for folder in (narrow, wide):
        model = TargetModel.from_dir(folder, torch.float32)
        ids = torch.randint(4, model.config.vocab_size, (1, 64), generator=torch.Generator().manual_seed(0))
        cache = KeyValueCache.empty(model.config, 1, ids.shape[1], torch.float32)
        found.append(model.logits(model.forward(ids, cache)[0]))
    return float((found[0] - found[1]).abs().max())


def own_prompts(seed: int, count: int) -> list[dict[str, str]]:
    """Return ``count`` questions of the fixture's own kinds, in three categories."""
    kinds = list(WRITERS)
    return [
        {"category": f"worked {SORTS[kinds[i % len(kinds)]]}", "prompt": question}
        for i, (question, _) in enumerate(conversations(seed, count))
    ]


def foreign_prompts(seed: int, count: int) -> list[dict[str, str]]:
    """Return ``count`` questions of the demo draft's training kinds, which are not the fixture's."""
    found = itertools.islice(demo_prompts("train", seed), count)
    return [{"category": "foreign", "prompt": record.turns[0]} for record in found]


def mixed(prompts: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Shuffle: in the order of their categories, all requests that run at the same time would be of one kind."""
    found = list(prompts)
    random.Random(PROMPT_SEED).shuffle(found)
    return found


def write_prompts(path: Path, prompts: Sequence[dict[str, str]]) -> None:
    """Write prompts as JSONL, for ``dspark bench``, ``dspark calibrate`` and ``dspark evaluate``."""
    path.write_text("".join(map(to_line, prompts)), encoding="utf-8")


def main() -> int:
    """Make the pair and its prompts; 1 when the wide target's logits are not the narrow one's."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder that receives target/, draft/ and prompts")
    parser.add_argument("--pair", type=Path, default=FIXTURE, help="pair to widen (default: the test fixture)")
    parser.add_argument("--factor", type=int, default=FACTOR, help=f"copies of each hidden unit (default: {FACTOR})")
    parser.add_argument(
        "--draft-noise",
        type=float,
        default=NOISE,
        metavar="STD",
        help=f"of the draft's weights: makes it worse (default: {NOISE})",
    )
    parser.add_argument("--seed", type=int, default=NOISE_SEED, help="of the noise")
    args = parser.parse_args()
    size = widen_target(args.pair / "target", args.out / "target", args.factor)
    drafted = widen_draft(args.pair / "draft", args.out / "draft", args.factor, noise=args.draft_noise, seed=args.seed)
    built_in = [json.loads(line) for _, line in numbered(BUILT_IN.read_text(encoding="utf-8"))]
    write_prompts(args.out / "prompts.jsonl", mixed([*built_in, *own_prompts(PROMPT_SEED, PROMPTS)]))
    both = own_prompts(CALIBRATION_SEED, CALIBRATION_PROMPTS) + foreign_prompts(CALIBRATION_SEED, CALIBRATION_PROMPTS)
    write_prompts(args.out / "calibration.jsonl", both)
    difference = largest_difference(args.pair / "target", args.out / "target")
    sys.stdout.write(
        f"target: {size / 1e6:.1f} million parameters, draft: {drafted / 1e6:.1f} million of its own\n"
        f"largest difference of the target's logits: {difference:.1e}\n"
    )
    return 0 if difference < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
