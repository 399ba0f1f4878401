//! `switch` and `drill`: what operators do to a running process by hand.

use std::fmt::Write as _;
use std::path::Path;

use super::ask::ask;
use super::print;
use crate::admin::switches::SwitchesStatus;
use crate::exit::{Exit, Failure};

/// What may be switched.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Switch {
    /// What is switched, and what could be
    List,
    /// Switch the routes of a group off
    Off {
        group: String,
        /// Then they come back: "10min"; until switched on if nothing is said
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<String>,
    },
    /// Switch the routes of a group on again
    On { group: String },
    /// Only routes marked `vital` live
    Survival {
        #[arg(value_parser = ["on", "off"])]
        state: String,
        /// Then it ends: "1h"; until switched off if nothing is said
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<String>,
    },
    /// Send a server no requests; those under way end in peace
    Drain {
        upstream: String,
        /// As written: "10.0.0.11:9000"
        server: String,
        /// Then it comes back: "10min"; until taken back if nothing is said
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<String>,
    },
    /// Send requests to a drained server again
    Undrain { upstream: String, server: String },
}

pub(super) fn switch(control: Option<&Path>, switch: Switch) -> Result<Exit, Failure> {
    match switch {
        Switch::List => {
            let (_, status): (u16, SwitchesStatus) = ask(control, "GET", "/v1/switches")?;
            print(&text(&status))
        }
        Switch::Off { group, span } => {
            post(control, &[("kind", "group"), ("name", &group), ("state", "off")], span.as_deref())
        }
        Switch::On { group } => {
            post(control, &[("kind", "group"), ("name", &group), ("state", "on")], None)
        }
        Switch::Survival { state, span } => {
            post(control, &[("kind", "survival"), ("state", &state)], span.as_deref())
        }
        Switch::Drain { upstream, server, span } => {
            let name = format!("{upstream}/{server}");
            let wish = [("kind", "drain"), ("name", name.as_str()), ("state", "on")];
            post(control, &wish, span.as_deref())
        }
        Switch::Undrain { upstream, server } => {
            let name = format!("{upstream}/{server}");
            post(control, &[("kind", "drain"), ("name", &name), ("state", "off")], None)
        }
    }
}

pub(super) fn drill(
    control: Option<&Path>,
    route: &str,
    cause: &str,
    span: &str,
    stop: bool,
) -> Result<Exit, Failure> {
    let state = if stop { "off" } else { "on" };
    let wish = [("kind", "drill"), ("name", route), ("cause", cause), ("state", state)];
    post(control, &wish, Some(span))
}

fn post(
    control: Option<&Path>,
    wish: &[(&str, &str)],
    span: Option<&str>,
) -> Result<Exit, Failure> {
    let mut path = "/v1/switches".to_owned();
    for (i, (key, value)) in wish.iter().copied().chain(span.map(|span| ("for", span))).enumerate()
    {
        // Names and spans hold nothing that a query would escape; IPv6 servers have brackets.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/[]".contains(&b);
        if !value.bytes().all(plain) {
            return Err(Failure::new(Exit::Usage, format!("{value:?} is not a {key}")));
        }
        let value = value.replace('[', "%5B").replace(']', "%5D");
        let _ = write!(path, "{}{key}={value}", if i == 0 { '?' } else { '&' });
    }
    let (_, status): (u16, SwitchesStatus) = ask(control, "POST", &path)?;
    match &status.error {
        Some(why) => Err(Failure::new(Exit::Failed, why.clone())),
        None => print(&text(&status)),
    }
}

fn text(status: &SwitchesStatus) -> String {
    let mut text = String::new();
    for switch in &status.switches {
        let name = switch.name.as_deref().unwrap_or_default();
        let _ = match (switch.kind.as_str(), switch.cause.as_deref()) {
            ("group", _) => write!(text, "group {name}: off"),
            ("drain", _) => write!(text, "server {name}: drained"),
            ("drill", Some(cause)) => write!(text, "drill of route {name}: {cause}"),
            (kind, _) => write!(text, "{kind} mode: only vital routes live"),
        };
        let _ = match switch.ends_in_seconds {
            Some(seconds) => writeln!(text, ", since {}, for {seconds} s more", switch.since),
            None => writeln!(text, ", since {}, until switched back", switch.since),
        };
    }
    if status.switches.is_empty() {
        text.push_str("nothing is switched\n");
    }
    for (group, routes) in &status.groups {
        let _ = writeln!(text, "group {group}: {}", routes.join(", "));
    }
    if !status.vital.is_empty() {
        let _ = writeln!(text, "vital: {}", status.vital.join(", "));
    }
    text
}
