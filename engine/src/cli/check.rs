//! `check` and `diff`: configurations without a running process.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use sluice_config::{Change, Config, Effect, Problem};

use super::{colour, json as pretty, print};
use crate::control::source::Source;
use crate::exit::{Exit, Failure};

pub(super) fn check(file: &Path, json: bool) -> Result<Exit, Failure> {
    let source = Source::File(file.to_owned());
    let text = source.text()?;
    let parsed = sluice_config::parse(&text);
    let good = parsed.is_ok();
    let (problems, summary) = match &parsed {
        Ok(config) => (config.warnings.iter().collect::<Vec<_>>(), summary(config)),
        Err(problems) => (problems.iter().collect(), String::new()),
    };
    if json {
        print(&pretty(&json!({ "file": source.name(), "good": good, "problems": problems }))?)?;
    } else {
        let colour = colour(&std::io::stderr());
        let rendered = |problem: &&Problem| problem.render(&source.name(), &text, colour);
        let problems: Vec<_> = problems.iter().map(rendered).collect();
        if !problems.is_empty() {
            eprintln!("{}", problems.join("\n\n"));
        }
        if good {
            print(&format!("{}: good: {summary}\n", source.name()))?;
        }
    }
    Ok(if good { Exit::Done } else { Exit::Configuration })
}

fn summary(config: &Config) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let listeners = count(config.server.listen.len(), "listener");
    let routes = count(config.plan.routes().len(), "route");
    let upstreams = count(config.plan.upstreams().len(), "upstream");
    format!("{listeners}, {routes}, {upstreams}")
}

pub(super) fn diff(old: &Path, new: &Path, json: bool) -> Result<Exit, Failure> {
    let changes = sluice_config::diff(&parse(old)?, &parse(new)?);
    if json {
        return print(&pretty(&changes)?);
    }
    print(&changes.iter().map(line).collect::<String>())
}

fn parse(file: &Path) -> Result<Config, Failure> {
    let source = Source::File(file.to_owned());
    let text = source.text()?;
    sluice_config::parse(&text).map_err(|problems| {
        let rendered = problems.render(&source.name(), &text, colour(&std::io::stderr()));
        Failure::new(Exit::Configuration, rendered.trim_end())
    })
}

/// `swap     route.orders.timeout: "2s" -> "3s"`
fn line(change: &Change) -> String {
    let effect = match change.effect {
        Effect::Swap => "swap",
        Effect::Rebind => "rebind",
        Effect::Restart => "restart",
    };
    let mut line = format!("{effect:8} {}: ", change.path);
    let _ = match (&change.old, &change.new) {
        (Some(old), Some(new)) => writeln!(line, "{old} -> {new}"),
        (None, Some(new)) => writeln!(line, "new: {new}"),
        (Some(old), None) => writeln!(line, "gone: {old}"),
        (None, None) => writeln!(line, "{}", Value::Null),
    };
    line
}
