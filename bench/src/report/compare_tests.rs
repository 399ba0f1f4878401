//! Tests of the comparison's report, in a file of their own for its length.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::compare::{Figures, Preset, Shares};
use crate::cpu::Cpus;

fn run(contender: &str, round: u32, requests_per_second: f64, cpu: Option<f64>) -> Run {
    let mut latency = Latencies::new();
    latency.record_ns(u64::from(round) * 1_000_000);
    Run {
        contender: contender.to_owned(),
        round,
        has_proxy: cpu.is_some(),
        window_s: 1.0,
        figures: Figures::from_iter(
            [(Kind::RequestsPerSecond, Some(requests_per_second)), (Kind::CpuUsPerRequest, cpu)]
                .into_iter()
                .filter_map(|(kind, value)| Some((kind, value?))),
        ),
        shares: Shares { proxy_waited: 0.06 * f64::from(round - 1), ..Shares::default() },
        bottleneck: if round == 1 { Bottleneck::Proxy } else { Bottleneck::LoadSide },
        answered: 2000,
        failed: match (contender, round) {
            ("two", 3) => 1,
            ("refusing", _) => 1000,
            _ => 0,
        },
        statuses: BTreeMap::new(),
        failures: BTreeMap::new(),
        latency,
    }
}

fn report() -> ScenarioReport {
    let scenario = Scenario {
        preset: Preset::Plain,
        rate: NonZeroU32::MIN,
        crowd: 1,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(1),
        seed: 1,
        together: true,
    };
    let runs = [
        run("direct", 1, 9_000.0, None),
        run("one", 1, 1_000.0, Some(20.0)),
        run("two", 1, 4_000.0, Some(30.0)),
        run("direct", 2, 9_000.0, None),
        run("one", 2, 2_000.0, Some(25.0)),
        run("two", 2, 4_400.0, Some(50.0)),
        run("direct", 3, 9_000.0, None),
        run("one", 3, 3_000.0, Some(21.0)),
        run("two", 3, 3_000.0, Some(42.0)),
        run("refusing", 3, 9_000.0, Some(5.0)),
    ];
    ScenarioReport::new(&scenario, &runs)
}

#[test]
fn figures_are_median_spread_and_ratio_to_the_best_proxy() {
    let report = report();
    let names: Vec<_> = report
        .summaries
        .iter()
        .map(|summary| (summary.contender.as_str(), summary.rounds))
        .collect();
    assert_eq!(names, [("direct", 3), ("one", 3), ("two", 3), ("refusing", 1)]);
    let cases = [
        ("one", Kind::RequestsPerSecond, "2,000 (1,000–3,000) ×0.50"),
        ("two", Kind::RequestsPerSecond, "4,000 (3,000–4,400) ×1.00"),
        ("one", Kind::CpuUsPerRequest, "21.0 (20.0–25.0) ×1.00"),
        ("two", Kind::CpuUsPerRequest, "42.0 (30.0–50.0) ×2.00"),
        ("direct", Kind::RequestsPerSecond, "9,000 (9,000–9,000)"),
        ("direct", Kind::CpuUsPerRequest, "-"),
        ("refusing", Kind::CpuUsPerRequest, "5.0 (5.0–5.0)"),
    ];
    for (contender, kind, expected) in cases {
        let summary =
            report.summaries.iter().find(|summary| summary.contender == contender).unwrap();
        assert_eq!(summary.cell(kind), expected, "{contender} {}", kind.name());
    }
}

#[test]
fn distributions_are_of_all_rounds_together() {
    assert!(report().summaries[..3].iter().all(|one| one.distribution.last().unwrap().count == 3));
}

#[test]
fn markdown_says_who_was_the_bottleneck_and_who_was_skipped() {
    let report = CompareReport {
        machine: Machine { cpu: "abacus".to_owned(), cpus: 2, kernel: "6".to_owned() },
        rounds: 2,
        proxy_cpu: Cpus::one(0),
        load_cpu: Cpus::one(1),
        origin_cpu: Cpus::one(1),
        urgent: true,
        contestants: Vec::new(),
        skipped: vec![Skipped { peer: "three".to_owned(), why: "not installed".to_owned() }],
        scenarios: vec![report()],
    };
    let text = report.markdown();
    for expected in [
        "| the load side, the proxy |",
        "**three was skipped**: not installed",
        "do not quote",
        "up to 12 % of the time",
        "Requests failed",
        "| **refusing**, 1000 failed |",
        "| **two**, 1 failed |",
        "lower bound",
        "before everything else",
        "flat out, 1.0 s a run, load and origin on one thread",
        "| 1 | direct | 9,000 | - |",
    ] {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
    let json = crate::report::json(&report).unwrap();
    let back: CompareReport = serde_json::from_str(&json).unwrap();
    assert_eq!(crate::report::json(&back).unwrap(), json);
}
