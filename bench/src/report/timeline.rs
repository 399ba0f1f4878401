//! A picture of a brown-out: for each gateway, over time, what clients got and how long it took.
//! Its colours follow the reader's choice of light or dark.

use std::fmt::Write;

use super::brownout::{BrownoutReport, RunReport, Tally};
use super::svg::escaped;

/// Draws a row for each run: answers a second to the left, times to the right.
pub(super) fn draw(report: &BrownoutReport) -> String {
    let rows: f64 = report.runs.iter().map(|_| ROW).sum();
    let height = TOP + rows + BOTTOM;
    let setting = &report.setting;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="12">
<style>{STYLE}</style>
<rect width="100%" height="100%" class="paper"/>
<text x="{LEFT}" y="26" font-size="17" font-weight="600">Brown-out: {} servers of {:.0} ms, clients wait {:.0} ms</text>"#,
        setting.servers, setting.service_ms, setting.patience_ms
    );
    legend(&mut out);
    for (run, row) in report.runs.iter().zip(0_u32..) {
        let top = TOP + ROW * f64::from(row);
        let end_s = run.points.last().map_or(1.0, |point| point.to_s);
        let most = run.points.iter().map(asked_per_s).fold(1.0, f64::max);
        let scale = Scale { left: LEFT, top, end_s, low: 0.0, high: most * 1.05 };
        answers(&mut out, run, &scale);
        let right = LEFT + PANEL + GAP;
        let scale = Scale { left: right, top, end_s, low: DECADES.0, high: DECADES.1 };
        times(&mut out, run, &scale);
    }
    out.push_str("</svg>\n");
    out
}

/// One panel: seconds from left to right, `low` to `high` from bottom to top.
struct Scale {
    left: f64,
    top: f64,
    end_s: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn x(&self, s: f64) -> f64 {
        self.left + PANEL * s / self.end_s
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        self.top + TALL - TALL * share.clamp(0.0, 1.0)
    }

    /// A stepped line over the points, as SVG has it; a point without a value leaves a gap.
    fn steps(&self, points: &[Tally], value: impl Fn(&Tally) -> Option<f64>) -> String {
        let (mut path, mut open) = (String::new(), false);
        for point in points {
            let Some(value) = value(point) else {
                open = false;
                continue;
            };
            let (from, to, y) = (self.x(point.from_s), self.x(point.to_s), self.y(value));
            let begin = if open { 'L' } else { 'M' };
            let _ = write!(path, "{begin}{from:.1} {y:.1}H{to:.1}");
            open = true;
        }
        path
    }

    /// The frame, the phases, and lines for the values.
    fn frame(&self, out: &mut String, run: &RunReport, ticks: &[(String, f64)]) {
        let (bottom, right) = (self.top + TALL, self.left + PANEL);
        for (label, value) in ticks {
            let y = self.y(*value);
            let _ = writeln!(
                out,
                r#"<path d="M{} {y:.1}H{right}" class="grid"/><text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
                self.left,
                self.left - 6.0,
                y + 4.0
            );
        }
        for phase in &run.phases {
            let x = self.x(phase.whole.from_s);
            let _ = writeln!(
                out,
                r#"<path d="M{x:.1} {}V{bottom}" class="turn"/><text x="{:.1}" y="{}" class="faint">{}</text>"#,
                self.top,
                x + 3.0,
                bottom + 14.0,
                phase.phase.name()
            );
        }
        let _ = writeln!(
            out,
            r#"<path d="M{} {}V{bottom}H{right}" class="axis"/><text x="{right}" y="{}" text-anchor="end" class="faint">{:.0} s</text>"#,
            self.left,
            self.top,
            bottom + 14.0,
            self.end_s
        );
    }
}

fn answers(out: &mut String, run: &RunReport, scale: &Scale) {
    let _ = writeln!(
        out,
        r#"<text x="{}" y="{}" font-weight="600">{}</text>"#,
        scale.left,
        scale.top - 8.0,
        escaped(&run.contender)
    );
    // What is drawn first is covered by the next.
    let late = |point: &Tally| point.good + point.refused + point.late + point.broken;
    area(out, run, scale, "late", &late);
    area(out, run, scale, "refused", &|point| point.good + point.refused);
    area(out, run, scale, "good", &|point| point.good);
    let can = scale.steps(&run.points, |point| Some(point.can / (point.to_s - point.from_s)));
    let _ = writeln!(out, r#"<path d="{can}" class="can"/>"#);
    let step = (scale.high / 4.0 / 100.0).ceil() * 100.0;
    let ticks: Vec<_> =
        (0..5).map(|n| f64::from(n) * step).filter(|value| *value <= scale.high).collect();
    let ticks: Vec<_> = ticks.into_iter().map(|value| (format!("{value:.0}/s"), value)).collect();
    scale.frame(out, run, &ticks);
}

fn area(
    out: &mut String,
    run: &RunReport,
    scale: &Scale,
    class: &str,
    count: &dyn Fn(&Tally) -> u64,
) {
    let line = scale.steps(&run.points, |point| Some(per_s(point, count(point))));
    let bottom = scale.y(0.0);
    let first = scale.x(run.points.first().map_or(0.0, |point| point.from_s));
    let last = scale.x(scale.end_s);
    let line = line.replacen('M', "L", 1);
    let _ = writeln!(
        out,
        r#"<path d="M{first:.1} {bottom:.1}{line}L{last:.1} {bottom:.1}Z" class="{class}"/>"#
    );
}

fn times(out: &mut String, run: &RunReport, scale: &Scale) {
    let log = |ms: f64| (ms > 0.0).then(|| ms.log10());
    let ticks = [10.0, 30.0, 100.0, 300.0, 1000.0_f64];
    let ticks: Vec<_> = ticks.iter().map(|ms| (format!("{ms:.0} ms"), ms.log10())).collect();
    scale.frame(out, run, &ticks);
    if let Some(bound) = log(2.0 * run.quiet_p99_ms()) {
        let (y, right) = (scale.y(bound), scale.left + PANEL);
        let _ = writeln!(out, r#"<path d="M{} {y:.1}H{right}" class="can"/>"#, scale.left);
    }
    for (class, value) in
        [("p50", (|point| point.p50_ms) as fn(&Tally) -> f64), ("p99", |point| point.p99_ms)]
    {
        let line = scale.steps(&run.points, |point| log(value(point)));
        let _ = writeln!(out, r#"<path d="{line}" class="{class}"/>"#);
    }
}

fn legend(out: &mut String) {
    let keys = [
        (LEFT, "good", "good"),
        (LEFT + 70.0, "refused", "refused"),
        (LEFT + 155.0, "late", "late or broken"),
        (LEFT + 275.0, "canbox", "what the origin can do"),
        (LEFT + PANEL + GAP, "p99box", "P99 of good"),
        (LEFT + PANEL + GAP + 110.0, "p50box", "P50"),
        (LEFT + PANEL + GAP + 165.0, "canbox", "twice the quiet P99"),
    ];
    for (x, class, name) in keys {
        let _ = writeln!(
            out,
            r#"<rect x="{x}" y="42" width="12" height="10" class="{class}"/><text x="{}" y="51">{name}</text>"#,
            x + 17.0
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a quarter of a second")]
fn per_s(point: &Tally, count: u64) -> f64 {
    count as f64 / (point.to_s - point.from_s).max(1e-9)
}

fn asked_per_s(point: &Tally) -> f64 {
    per_s(point, point.good + point.refused + point.late + point.broken)
}

const STYLE: &str = "
text{fill:#1f2933}.faint{fill:#66727f}.paper{fill:#ffffff}
.grid{stroke:#e1e6eb}.turn{stroke:#9aa5b1;stroke-dasharray:2 3}.axis{stroke:#52606d;fill:none}
.good{fill:#009e73}.refused{fill:#c3ccd5}.late{fill:#d55e00}
.can{stroke:#111111;fill:none;stroke-dasharray:5 3;stroke-width:1.3}.canbox{fill:#111111}
.p99{stroke:#0072b2;fill:none;stroke-width:1.8}.p99box{fill:#0072b2}
.p50{stroke:#cc79a7;fill:none;stroke-width:1.3}.p50box{fill:#cc79a7}
@media (prefers-color-scheme:dark){
text{fill:#d6dde4}.faint{fill:#93a0ad}.paper{fill:#0d1117}
.grid{stroke:#262d35}.turn{stroke:#5c6773}.axis{stroke:#93a0ad}
.refused{fill:#46515c}.can{stroke:#f2f5f8}.canbox{fill:#f2f5f8}
.p99{stroke:#56b4e9}.p99box{fill:#56b4e9}}
";
const WIDTH: f64 = 980.0;
const LEFT: f64 = 62.0;
const PANEL: f64 = 410.0;
const GAP: f64 = 78.0;
const TOP: f64 = 88.0;
const TALL: f64 = 118.0;
const ROW: f64 = 166.0;
const BOTTOM: f64 = 4.0;
/// From 10 ms to 2 s.
const DECADES: (f64, f64) = (1.0, 3.301);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_without_a_value_is_a_gap() {
        let scale = Scale { left: 0.0, top: 0.0, end_s: PANEL, low: 0.0, high: TALL };
        let point = |s: f64, p99_ms| Tally { from_s: s, to_s: s + 1.0, p99_ms, ..Tally::default() };
        let points = [point(0.0, 18.0), point(1.0, 0.0), point(2.0, 118.0), point(3.0, 500.0)];
        let found = scale.steps(&points, |point| (point.p99_ms > 0.0).then_some(point.p99_ms));
        assert_eq!(found, "M0.0 100.0H1.0M2.0 0.0H3.0L3.0 0.0H4.0");
    }
}
