//! What is written down: text for people, JSON for machines, Markdown and SVG for reports.

pub mod brownout;
pub mod compare;
pub mod load;
pub mod spread;
pub mod svg;
pub mod timeline;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes one file of a report, its folder included.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// JSON as both people and machines like it.
pub fn json(report: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(report).context("cannot write JSON")?;
    text.push('\n');
    Ok(text)
}

/// Whole numbers with thin groups: `12,345`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, expected) in [
            (0.0, "0"),
            (999.4, "999"),
            (1_000.0, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-1.0, "0"),
        ] {
            assert_eq!(grouped(number), expected);
        }
    }
}
