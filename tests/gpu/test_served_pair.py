"""A real server on the device: its text is the target's own, greedy and sampled, in fp32 and from graphs in bf16."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import arms, graph_checks, pair
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.gpu, pytest.mark.server]
PROMPTS = 60
# Other kernels than those under test, in any dtype; what SGLang would choose on a recent device needs more packages.
PLAIN = ["--plain", "--attention-backend", "triton"]


@pytest.fixture(autouse=True)
def _sglang() -> None:
    pytest.importorskip("sglang")


def test_a_pair_of_head_dim_64_is_served_from_graphs(tmp_path: Path) -> None:
    """In bf16 as a large model is: FlashInfer, draft kernel, ranking and graphs; the fixture pair with wider heads."""
    from tests.support.wide_pair import make_wide_pair

    target, draft = make_wide_pair(tmp_path)
    wanted = graph_checks.greedy_requests(PROMPTS)
    served = graph_checks.dspark_flags(target, draft, "bfloat16")
    with ServerProcess(served, tmp_path / "dspark", **pair.SERVER_ENVIRONMENT).serving() as server:
        answers = arms.answer_all(server, wanted, graph_checks.AT_ONCE)
        graph_checks.check_ranked_in_graphs(server)
        graph_checks.check_laws(server)
        graph_checks.check_ranked_in_graphs(server)
    plain = [*PLAIN, *graph_checks.flags(target, "bfloat16")]
    with ServerProcess(plain, tmp_path / "plain", **pair.SERVER_ENVIRONMENT).serving() as alone:
        graph_checks.check_best_tokens(alone, wanted, answers)


def test_greedy_text_in_fp32_is_the_targets(tmp_path: Path) -> None:
    """Exactly, since fp32 does not part ways at near ties; attended by torch, ranked on the host, without graphs."""
    wanted = graph_checks.greedy_requests(PROMPTS)
    plain = [*PLAIN, *pair.SERVER_FLAGS]
    with ServerProcess(plain, tmp_path / "plain", **pair.SERVER_ENVIRONMENT).serving() as alone:
        known = arms.answer_all(alone, wanted)
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    with ServerProcess(flags, tmp_path / "dspark", **pair.SERVER_ENVIRONMENT).serving() as server:
        answers = arms.answer_all(server, wanted)
    different = [name for name in answers if arms.essence(answers[name]) != arms.essence(known[name])]
    assert not different
