"""The Verification dashboard: what is verified, what it earns, and whether predictions hold."""

from __future__ import annotations

from dspark_sglang.metrics.definitions import ROUND_REASONS
from grafana.panels import Pair, Panel, Query

TITLE, UID = "DSpark: Verification", "dspark-verification"
ABOUT = "Budgets, lengths, acceptance by slot, calibration, predictions and fallbacks of the verify scheduler."
STEP = "[$__rate_interval]"


def _rate(name: str, by: str = "", labels: str = "SEL") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({name}{{{labels}}}{STEP}))"


def _share(part: str, whole: str, by: str = "") -> str:
    return f"{_rate(part, by)} / ({_rate(whole, by)} > 0)"


def _quantile(quantile: float, name: str, label: str = "") -> Query:
    text = f"histogram_quantile({quantile}, {_rate(name + '_bucket', 'le')})"
    return Query(text, label or f"p{quantile * 100:g}")


def _mean(name: str, by: str = "") -> str:
    return _share(f"{name}_sum", f"{name}_count", by)


PER_ROUND = "|".join(ROUND_REASONS)
BIN = "(sum by (bin) (increase(dspark_calibration_judged_total{SEL}[$__range])) > 20)"
FALLBACKS = " or ".join(
    f"{_rate('dspark_fallbacks_total', 'reason', f'SEL,reason{match}{chr(34)}{PER_ROUND}{chr(34)}')}"
    f" / scalar({_rate(whole)} > 0) > 0"
    for match, whole in (("=~", "dspark_rounds_total"), ("!~", "dspark_steps_total"))
)

PANELS = (
    Panel(
        "Verify budget K",
        "Drafts verified in one step over all requests, anchors excluded.",
        [
            _quantile(0.5, "dspark_verify_budget_drafts"),
            _quantile(0.95, "dspark_verify_budget_drafts"),
            Query(_mean("dspark_verify_budget_drafts"), "mean"),
        ],
    ),
    Panel(
        "Verify length by policy",
        "Anchor included; the block length plus one is the most.",
        [Query(_mean("dspark_verify_length_tokens", "policy"), "{{policy}}")],
    ),
    Panel(
        "Accept length by policy",
        "Tokens that a round emits, bonus included.",
        [Query(_mean("dspark_accept_length_tokens", "policy"), "{{policy}}")],
    ),
    Panel(
        "Survival by slot",
        "Share accepted of what was verified at each slot: a draft and all before it.",
        [Query(_share("dspark_slot_accepted_total", "dspark_slot_verified_total", "slot"), "{{slot}}", True)],
        "percentunit",
        "bars",
        6,
        high=1.0,
    ),
    Panel(
        "Acceptance by slot",
        "Share accepted of the drafts whose predecessors all were.",
        [Query(_share("dspark_slot_accepted_total", "dspark_slot_judged_total", "slot"), "{{slot}}", True)],
        "percentunit",
        "bars",
        6,
        high=1.0,
    ),
    Panel(
        "Reliability",
        "Mean confidence of a bin against the share accepted; on the diagonal confidences are right. Bins of more than "
        "20 drafts in the range.",
        [
            Query(
                f"sum by (bin) (increase(dspark_calibration_confidence_total{{SEL}}[$__range])) / {BIN}", "", True, True
            ),
            Query(
                f"sum by (bin) (increase(dspark_calibration_accepted_total{{SEL}}[$__range])) / {BIN}", "", True, True
            ),
        ],
        kind="scatter",
        width=6,
        axes=("confidence", "accepted"),
        pairs=[Pair("bins", "A", "B", "bin", "Value #A", "Value #B")],
    ),
    Panel(
        "Calibration error",
        "Over half an hour, from the counters; and as the scheduler itself sees it: above 0.08 it sets them aside.",
        [
            Query("max(dspark:calibration_ece:ratio30m{SEL})", "30 minutes"),
            Query("max by (kind) (dspark_calibration_ece_ratio{SEL})", "live, {{kind}}"),
        ],
        width=6,
        quiet="Too few drafts judged",
    ),
    Panel(
        "Predicted over actual",
        "1 is right. Tokens by the step's own confidences, tokens as planned two steps ahead, and step time.",
        [
            Query(_share("dspark_expected_tokens_total", "dspark_expected_actual_tokens_total"), "tokens, ranked"),
            Query(_share("dspark_planned_tokens_total", "dspark_planned_actual_tokens_total"), "tokens, planned"),
            Query(_share("dspark_predicted_step_seconds_total", "dspark_predicted_actual_seconds_total"), "step time"),
        ],
        low=None,
    ),
    Panel(
        "Error of predicted step time",
        "Relative, of single steps.",
        [_quantile(0.5, "dspark_step_time_error_ratio"), _quantile(0.95, "dspark_step_time_error_ratio")],
        "percentunit",
        quiet="No step times: see the fallback no_cost_model",
    ),
    Panel(
        "Fallbacks",
        "Share of steps by name, or of rounds where it happens to single requests; docs/scheduling.md says when.",
        [Query(FALLBACKS, "{{reason}}")],
        quiet="No fallbacks in this range",
    ),
    Panel(
        "Tokens",
        "Proposed, verified and accepted drafts, bonus tokens, and what the end of an answer cut off.",
        [
            Query(_rate("dspark_proposed_tokens_total"), "proposed"),
            Query(_rate("dspark_verified_tokens_total"), "verified"),
            Query(_rate("dspark_accepted_tokens_total"), "accepted"),
            Query(_rate("dspark_bonus_tokens_total"), "bonus"),
            Query(_rate("dspark_cut_tokens_total"), "cut"),
        ],
    ),
    Panel(
        "Rounds without a draft",
        "Share of rounds in plain steps, and of those left out of a drafted step.",
        [
            Query(
                f"{_rate('dspark_undrafted_rounds_total', 'why')} / scalar({_rate('dspark_rounds_total')} > 0)",
                "{{why}}",
            )
        ],
        "percentunit",
        high=1.0,
    ),
    Panel(
        "Rows of a step",
        "Rows that the target computes for all requests together, padding included.",
        [
            _quantile(0.5, "dspark_verify_tier_tokens", "rows, p50"),
            _quantile(0.95, "dspark_verify_tier_tokens", "rows, p95"),
        ],
    ),
    Panel(
        "Waste",
        "Padding among verify tokens, and rounds of requests that had ended already.",
        [
            Query(_share("dspark_padding_tokens_total", "dspark_verify_tokens_total"), "padding"),
            Query(_share("dspark_ended_rounds_total", "dspark_rounds_total"), "ended"),
        ],
        "percentunit",
    ),
    Panel(
        "Probes",
        "Rounds and steps run only to look, and drafts that full-length probes added.",
        [
            Query(_rate("dspark_probes_total", "probe"), "{{probe}}"),
            Query(_rate("dspark_probe_tokens_total"), "drafts added"),
        ],
    ),
    Panel(
        "Steps by policy",
        "Drafted and plain.",
        [Query(_rate("dspark_steps_total", "policy, mode") + " > 0", "{{policy}}, {{mode}}")],
        stacked=True,
    ),
    Panel(
        "What serves",
        "Pair, block length, and where step times and calibration are from.",
        [Query("dspark_worker_info{SEL} == 1", "", True, True)],
        kind="table",
        width=16,
        height=5,
        quiet="No DSpark worker",
    ),
    Panel(
        "Policy in force",
        "A digest of all settings tells apart what the name does not.",
        [Query("dspark_policy_info{SEL} == 1", "", True, True)],
        kind="table",
        height=5,
        quiet="No DSpark worker",
    ),
)
