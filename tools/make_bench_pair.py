"""Make the pair that the scheduler's benchmarks serve: the test fixture, widened to 23 million parameters.

    python tools/make_bench_pair.py --out /tmp/bench-pair

A few seconds on one core. The pair answers as the fixture does (``sgl_dspark/demo/widen.py``), so it accepts drafts as
a trained pair does, while its steps take the time of a dense model of its size: twelve layers of width 384. The draft
is made worse by noise, to the accept length of about 3 that drafts of large models have. ``prompts.jsonl`` beside it
holds questions of the fixture's own kinds, easy and hard ones in turn.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

import torch

from sgl_dspark.demo.fixture_text import WRITERS, conversations
from sgl_dspark.demo.widen import widen_draft, widen_target
from sgl_dspark.training.target import KeyValueCache, TargetModel

FIXTURE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "pair"
# With this noise: accept length 3.28 greedy and 2.96 at temperature 1 on the first 27 prompts, batch 1, fp32.
FACTOR, NOISE, NOISE_SEED = 3, 2.5, 0
# Far from the seeds of the fixture's training, held-out and test prompts.
PROMPT_SEED, PROMPTS = 4_000_000, 144
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


def write_prompts(path: Path, seed: int, count: int) -> None:
    """Write ``count`` questions as JSONL with their kinds, for ``dspark bench`` and ``dspark train evaluate``."""
    kinds = list(WRITERS)
    lines = [
        json.dumps({"kind": kinds[i % len(kinds)], "turns": [question]}, ensure_ascii=False)
        for i, (question, _) in enumerate(conversations(seed, count))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Make the pair and its prompts; 1 when the wide target's logits are not the narrow one's."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder that receives target/, draft/, prompts.jsonl")
    parser.add_argument("--pair", type=Path, default=FIXTURE, help="pair to widen (default: the test fixture)")
    parser.add_argument("--factor", type=int, default=FACTOR, help=f"copies of each hidden unit (default: {FACTOR})")
    parser.add_argument(
        "--draft-noise", type=float, default=NOISE, metavar="STD", help=f"relative to the weights (default: {NOISE})"
    )
    parser.add_argument("--seed", type=int, default=NOISE_SEED, help="of the noise")
    args = parser.parse_args()
    size = widen_target(args.pair / "target", args.out / "target", args.factor)
    drafted = widen_draft(args.pair / "draft", args.out / "draft", args.factor, noise=args.draft_noise, seed=args.seed)
    write_prompts(args.out / "prompts.jsonl", PROMPT_SEED, PROMPTS)
    difference = largest_difference(args.pair / "target", args.out / "target")
    sys.stdout.write(
        f"target: {size / 1e6:.1f} million parameters, draft: {drafted / 1e6:.1f} million of its own\n"
        f"largest difference of the target's logits: {difference:.1e}\n"
    )
    return 0 if difference < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
