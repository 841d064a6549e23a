from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.errors import ProfileError
from sgl_dspark.sps.fit import Kind, Probe, fit, isotonic, non_negative_fit


def verify(tokens: int, seconds: float, *, requests: int = 1, context: int = 0) -> Probe:
    return Probe("verify", requests, tokens, context, seconds)


def test_isotonic_pools_by_weight() -> None:
    assert isotonic([1.0, 3.0, 2.0, 4.0]).tolist() == [1.0, 2.5, 2.5, 4.0]
    assert isotonic([3.0, 2.0, 1.0]).tolist() == [2.0, 2.0, 2.0]
    assert isotonic([4.0, 1.0], [1.0, 3.0]).tolist() == [1.75, 1.75]


def test_repeats_count_by_their_median() -> None:
    model = fit([verify(1, 1.0), verify(1, 1.1), verify(1, 50.0), verify(4, 2.0)])
    assert model.verify.at(1) == pytest.approx(1.1)


def test_a_step_that_was_disturbed_in_every_repeat_is_left_out() -> None:
    times = {1: 1.0, 2: 1.2, 4: 9.0, 8: 2.0, 16: 3.0, 32: 5.0}
    model = fit([verify(tokens, seconds) for tokens, seconds in times.items()])
    assert model.verify.sizes.tolist() == [1, 2, 8, 16, 32]
    assert model.verify.at(4) < 2.0


def test_a_staircase_is_kept() -> None:
    model = fit([verify(tokens, 1.0 if tokens <= 8 else 2.0) for tokens in range(1, 17)])
    assert model.verify.at(8) == 1.0
    assert model.verify.at(9) == 2.0


def test_with_graphs_each_size_costs_what_its_tier_costs() -> None:
    model = fit([verify(tokens, float(tokens)) for tokens in (1, 4, 8, 16)], tiers=[4, 16])
    assert model.step_times(1, 7, 0).tolist() == [4.0] * 4 + [16.0] * 4
    assert model.plain_time(3, 0) == 4.0


def test_context_costs_are_told_apart_and_taken_from_the_curve() -> None:
    read, computed = 2e-6, 5e-7
    probes = [
        verify(
            tokens, 1e-3 * tokens + context * (read + computed * tokens / requests), requests=requests, context=context
        )
        for tokens in (4, 16, 64)
        for requests in (1, 4)
        for context in (0, 1000, 4000)
    ]
    model = fit(probes)
    assert model.context_token_s == pytest.approx(read, rel=1e-6)
    assert model.context_query_s == pytest.approx(computed, rel=1e-6)
    assert model.verify.seconds == pytest.approx([4e-3, 16e-3, 64e-3])


def test_a_row_costs_what_more_requests_of_the_same_tokens_take_longer() -> None:
    probes = [
        verify(tokens, 1e-3 * tokens + 2e-4 * requests + 1e-6 * context, requests=requests, context=context)
        for tokens in (8, 32)
        for requests in (1, 4)
        for context in (128 * requests, 768 * requests)
    ]
    model = fit(probes)
    assert model.verify_request_s == pytest.approx(2e-4)
    assert model.step_times(4, 7, 512)[28] == pytest.approx(32e-3 + 8e-4 + 512e-6)
    # Without probes of its own a plain step is the verification of one token for each request.
    assert model.plain_time(4, 0) == pytest.approx(8e-3 + 8e-4)
    plain = fit([*probes, Probe("plain", 4, 4, 0, 5e-3)])
    assert plain.plain_time(4, 0) == pytest.approx(5e-3)


def test_without_two_contexts_at_one_size_context_has_no_price() -> None:
    model = fit([verify(1, 1.0, context=100), verify(2, 2.0, context=200)])
    assert model.context_token_s == model.context_query_s == 0.0


def test_draft_plain_acceptance_and_prefill_have_their_own_probes() -> None:
    probes = [verify(1, 4.0), verify(8, 11.0)]
    probes += [
        Probe("draft", rows, 0, context, 1.0 + 0.5 * rows + 0.001 * context) for rows in (1, 4) for context in (0, 500)
    ]
    probes += [Probe("plain", requests, requests, 0, 2.0 + requests) for requests in (1, 4)]
    probes += [Probe("accept", r, b, 0, 0.1 + 0.2 * r + 0.05 * b) for r, b in ((1, 2), (1, 8), (4, 8), (4, 32))]
    probes += [Probe("prefill", 1, 100, 0, 7.0)]
    model = fit(probes)
    assert [model.draft.at(rows) for rows in (1, 4)] == pytest.approx([1.5, 3.0])
    assert model.draft_context_s == pytest.approx(0.001)
    assert model.plain_time(4, 0) == pytest.approx(6.0)
    assert [model.accept_s, model.accept_request_s, model.accept_token_s] == pytest.approx([0.1, 0.2, 0.05])
    assert model.prefill_token_s == pytest.approx(0.07)


def test_a_prefilled_token_costs_what_a_further_verify_token_would_if_unprobed() -> None:
    assert fit([verify(1, 1.0), verify(11, 6.0)]).prefill_token_s == pytest.approx(6.0 / 11)


def test_no_verification_probed_is_refused() -> None:
    with pytest.raises(ProfileError, match="no verification was probed"):
        fit([Probe("draft", 1, 0, 0, 1.0)])


@pytest.mark.parametrize("probe", [verify(1, 0.0), verify(1, float("nan")), verify(1, 1.0, requests=0)])
def test_what_is_no_measurement_is_refused(probe: Probe) -> None:
    with pytest.raises(ProfileError, match="no measurement"):
        fit([probe])


@pytest.mark.parametrize("kind", ["verify", "accept", "prefill"])
def test_no_tokens_where_they_count_is_refused(kind: Kind) -> None:
    with pytest.raises(ProfileError, match="no measurement"):
        fit([verify(1, 1.0), Probe(kind, 1, 0, 0, 1.0)])


def test_non_negative_fit_leaves_out_what_would_be_negative() -> None:
    columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert non_negative_fit(columns, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert non_negative_fit(columns, np.array([1.0, 2.0, 3.0])) == pytest.approx([1.0, 1.0])


def test_long_contexts_do_not_bend_the_curve_over_sizes() -> None:
    """Attention over a long context can cost far more than in proportion; only its own price may rise by that."""
    curve = {16: 0.012, 64: 0.020, 128: 0.036, 256: 0.065}
    probes = [Probe("verify", 16, size, 16 * 128, seconds) for size, seconds in curve.items()]
    probes += [Probe("verify", 16, 128, 16 * 768, 0.15), Probe("verify", 16, 16, 16 * 768, 0.02)]
    model = fit(probes)
    at = {size: model.step_times(16, 15, 16 * 128)[size - 16] for size in curve}
    for size, seconds in curve.items():
        assert at[size] == pytest.approx(seconds, rel=0.1)
