//! The command line.

mod ask;
mod check;
mod doctor;
mod limits;
mod papers;
mod proxy;
mod sample;
mod serve;
mod switch;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::exit::{Exit, Failure};
use crate::runtime::Wanted;

/// An API gateway for Linux: one worker a core, nothing shared, every decision explained.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failure, 2 usage, 77 permission, 78 configuration.
Signals: TERM drains (a second TERM stops), HUP reloads, USR1 reopens logs.";

#[derive(Debug, Subcommand)]
enum Command {
    /// A gateway in front of two built-in sample services: no file, nothing to set up
    Try {
        #[command(flatten)]
        running: Running,
        #[command(flatten)]
        admin: AdminAddress,
    },
    /// A reverse proxy in one line
    Proxy {
        /// Where clients connect: ":8080", "127.0.0.1:8080", "[::]:8080"
        listen: String,
        /// Where requests go: "127.0.0.1:3000", "http://app.internal:3000"
        upstream: String,
        /// Print the configuration that this stands for, and do nothing
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        running: Running,
        #[command(flatten)]
        admin: AdminAddress,
    },
    /// Run a configuration
    Run {
        /// The configuration, in TOML
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        #[command(flatten)]
        running: Running,
    },
    /// Every problem of a configuration at once
    Check {
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// What a change of the configuration touches
    Diff {
        #[arg(value_hint = ValueHint::FilePath)]
        old: PathBuf,
        #[arg(value_hint = ValueHint::FilePath)]
        new: PathBuf,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Ask the running process to take up its configuration anew
    Reload {
        #[command(flatten)]
        control: ControlPath,
    },
    /// The running process at a glance
    Status {
        #[command(flatten)]
        control: ControlPath,
        /// For machines; also when standard output is no terminal
        #[arg(long)]
        json: bool,
    },
    /// Switch routes off and on by hand
    Switch {
        #[command(subcommand)]
        switch: switch::Switch,
        /// The socket of the process
        #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
        control: Option<PathBuf>,
    },
    /// What limits promise and did, and numbers of single keys
    Limits {
        #[command(subcommand)]
        limits: limits::Limits,
        /// The socket of the process
        #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
        control: Option<PathBuf>,
    },
    /// Have a route behave as if its upstream failed, to see that its fallback works
    Drill {
        /// The route, by name
        route: String,
        /// limited, shed, open, connect, timeout, 5xx or off
        #[arg(long, default_value = "open")]
        cause: String,
        /// At most 1h
        #[arg(long = "for", value_name = "SPAN", default_value = "30s")]
        span: String,
        /// End it now
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        control: ControlPath,
    },
    /// Kernel, io_uring, limits, sysctls: what is, and what should be
    Doctor {
        /// A configuration whose Redis is to be looked at, too
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        /// For machines; also when standard output is no terminal
        #[arg(long)]
        json: bool,
    },
    /// The JSON Schema of the configuration, for editors
    Schema,
    /// Completions for a shell
    Completions { shell: Shell },
    /// The manual page, in roff
    Man,
}

/// What may be said about any process that serves.
#[derive(Debug, Args)]
struct Running {
    #[command(flatten)]
    control: ControlPath,
    /// How the kernel is asked for input and output, whatever the configuration says
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Wanted::NAMES))]
    driver: Option<String>,
    /// How many workers, whatever the configuration says; one a core if nothing does
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroU16>,
}

#[derive(Debug, Args)]
struct ControlPath {
    /// The socket by which `reload` and `status` find the process
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct AdminAddress {
    /// Health, metrics and the admin API [default: the first free port from 127.0.0.1:9901]
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
}

/// The whole program.
pub fn main() -> ExitCode {
    // Prints help and mistakes itself, and exits with 0 or 2.
    match run(Cli::parse().command) {
        Ok(exit) => exit.into(),
        Err(Failure { exit, text }) => {
            eprintln!("{text}");
            exit.into()
        }
    }
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Try { running, admin } => serve::sample(&running, admin.admin),
        Command::Proxy { listen, upstream, print, running, admin } => {
            serve::proxy(&proxy::Proxy::new(&listen, &upstream)?, print, &running, admin.admin)
        }
        Command::Run { config, running } => serve::file(config, &running),
        Command::Check { file, json } => check::check(&file, json),
        Command::Diff { old, new, json } => check::diff(&old, &new, json),
        Command::Reload { control } => ask::reload(control.control.as_deref()),
        Command::Status { control, json } => ask::status(control.control.as_deref(), json),
        Command::Switch { switch, control } => switch::switch(control.as_deref(), switch),
        Command::Drill { route, cause, span, stop, control } => {
            switch::drill(control.control.as_deref(), &route, &cause, &span, stop)
        }
        Command::Limits { limits, control } => limits::limits(control.as_deref(), limits),
        Command::Doctor { config, json } => doctor::doctor(config, json),
        Command::Schema => papers::schema(),
        Command::Completions { shell } => papers::completions(shell),
        Command::Man => papers::man(),
    }
}

/// Colours are for terminals, and for people who have not said no (<https://no-color.org>).
fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Print on standard output. A reader that has gone (`sluice schema | head`) is no failure.
fn print(text: &str) -> Result<Exit, Failure> {
    use std::io::Write as _;
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::io("standard output", &e))
        }
        Ok(()) | Err(_) => Ok(Exit::Done),
    }
}

/// The value as JSON for people and machines: indented, with a line end.
fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => Ok(text + "\n"),
        Err(e) => Err(Failure::new(Exit::Failed, format!("no JSON: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_driver_of_the_command_line_is_one() {
        for name in Wanted::NAMES {
            let parsed = Cli::try_parse_from(["sluice", "run", "-c", "f", "--driver", name]);
            let Ok(Cli { command: Command::Run { running, .. } }) = parsed else {
                panic!("{name} is not taken")
            };
            assert!(running.driver.as_deref().and_then(Wanted::parse).is_some(), "{name}");
        }
        let refused = Cli::try_parse_from(["sluice", "run", "-c", "f", "--driver", "kqueue"]);
        assert_eq!(refused.unwrap_err().exit_code(), 2);
    }
}
