//! A picture of latency distributions: percentiles over an axis that is logarithmic in
//! 1/(1-p), so that 99 % and 99.99 % get the room that they deserve.

use std::fmt::Write;

use crate::histogram::{Step, human_us};

/// A named line of the plot.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub name: &'a str,
    pub steps: &'a [Step],
}

/// Draws the lines into one SVG. Lines without points are named and not drawn.
pub fn draw(title: &str, lines: &[Line<'_>]) -> String {
    let points: Vec<Vec<(f64, f64)>> = lines.iter().map(|line| points(line.steps)).collect();
    let axes = Axes::around(points.iter().flatten().copied());
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="#1f2933">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{LEFT}" y="28" font-size="17" font-weight="600">{}</text>"##,
        escaped(title)
    );
    axes.draw(&mut out);
    for (index, (line, points)) in lines.iter().zip(&points).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        if !points.is_empty() {
            let path: Vec<String> = points
                .iter()
                .map(|(nines, us)| format!("{:.1},{:.1}", axes.x(*nines), axes.y(*us)))
                .collect();
            let path = path.join(" ");
            let _ = writeln!(
                out,
                r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>"#
            );
        }
        let (x, y) =
            (LEFT + 14.0, TOP + 18.0 + 20.0 * f64::from(u32::try_from(index).unwrap_or(0)));
        let name = escaped(line.name);
        let _ = writeln!(
            out,
            r#"<rect x="{x}" y="{}" width="14" height="4" fill="{colour}"/><text x="{}" y="{y}">{name}</text>"#,
            y - 6.0,
            x + 22.0
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Nines (the decimal logarithm of 1/(1-p)) and microseconds. The last step is 100 %, which lies
/// at infinity: it is drawn where one request in all of them lies.
fn points(steps: &[Step]) -> Vec<(f64, f64)> {
    let total = steps.last().map_or(0, |step| step.count);
    let end = f64::from(u32::try_from(total).unwrap_or(u32::MAX)).max(1.0).log10();
    let drawn = steps.iter().filter(|step| step.count > 0 && step.latency_us > 0.0);
    drawn.map(|step| ((-(1.0 - step.quantile).log10()).clamp(0.0, end), step.latency_us)).collect()
}

/// What the picture spans: nines from left to right, decades of microseconds from bottom to top.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axes {
    nines: f64,
    low: f64,
    high: f64,
}

impl Axes {
    fn around(points: impl Iterator<Item = (f64, f64)>) -> Self {
        let start = Self { nines: 2.0, low: f64::INFINITY, high: f64::NEG_INFINITY };
        let found = points.fold(start, |axes, (nines, us)| Self {
            nines: axes.nines.max(nines),
            low: axes.low.min(us.log10().floor()),
            high: axes.high.max(us.log10().ceil()),
        });
        let (low, high) = if found.low.is_finite() { (found.low, found.high) } else { (1.0, 2.0) };
        Self { nines: found.nines, low, high: high.max(low + 1.0) }
    }

    fn x(&self, nines: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * nines / self.nines
    }

    fn y(&self, us: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (us.log10() - self.low) / (self.high - self.low)
    }

    fn draw(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (label, nines) in TICKS.iter().filter(|(_, nines)| *nines <= self.nines) {
            let x = self.x(*nines);
            let _ = writeln!(
                out,
                r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#e1e6eb"/><text x="{x:.1}" y="{}" text-anchor="middle">{label}</text>"##,
                bottom + 20.0
            );
        }
        let mut decade = self.low;
        while decade <= self.high {
            for step in [1.0, 2.0, 5.0] {
                let us = step * 10f64.powf(decade);
                if us.log10() <= self.high + 1e-9 {
                    let y = self.y(us);
                    let _ = writeln!(
                        out,
                        r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#e1e6eb"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
                        LEFT - 8.0,
                        y + 4.0,
                        human_us(us)
                    );
                }
            }
            decade += 1.0;
        }
        let _ = writeln!(
            out,
            r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#52606d"/><text x="{:.1}" y="{}" text-anchor="middle">percentile (logarithmic in 1/(1-p)); latency from when a request was due</text>"##,
            f64::midpoint(LEFT, right),
            bottom + 44.0
        );
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 62.0;
const TICKS: [(&str, f64); 9] = [
    ("0%", 0.0),
    ("50%", std::f64::consts::LOG10_2),
    ("90%", 1.0),
    ("99%", 2.0),
    ("99.9%", 3.0),
    ("99.99%", 4.0),
    ("99.999%", 5.0),
    ("99.9999%", 6.0),
    ("99.99999%", 7.0),
];
/// Told apart also by those who see few colours (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

#[cfg(test)]
mod tests {
    use super::*;

    fn step(quantile: f64, latency_us: f64, count: u64) -> Step {
        Step { quantile, latency_us, count }
    }

    #[test]
    fn a_nine_more_is_one_step_to_the_right() {
        let steps = [
            step(0.0, 1.0, 1),
            step(0.9, 10.0, 900),
            step(0.99, 100.0, 990),
            step(1.0, 1_000.0, 1_000),
        ];
        let found = points(&steps);
        for ((nines, us), (expected_nines, expected_us)) in
            found.iter().zip([(0.0, 1.0), (1.0, 10.0), (2.0, 100.0), (3.0, 1_000.0)])
        {
            assert!((nines - expected_nines).abs() < 1e-9, "{found:?}");
            assert_eq!(*us, expected_us);
        }
        let axes = Axes::around(found.into_iter());
        assert_eq!(axes, Axes { nines: 3.0, low: 0.0, high: 3.0 });
        assert!((axes.x(2.0) - axes.x(1.0) - (axes.x(3.0) - axes.x(2.0))).abs() < 1e-9);
        assert_eq!((axes.y(1.0), axes.y(1_000.0)), (HEIGHT - BOTTOM, TOP));
    }

    #[test]
    fn nothing_measured_still_draws_a_picture() {
        let text = draw("empty", &[Line { name: "a", steps: &[] }]);
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("polyline"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let text = draw("a<b>&\"c\"", &[Line { name: "<script>", steps: &[step(1.0, 5.0, 1)] }]);
        assert!(text.contains("a&lt;b&gt;&amp;&quot;c&quot;") && !text.contains("<script>"));
    }
}
