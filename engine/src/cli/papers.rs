//! What the program says about itself: schema, completions, manual.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, json, print};
use crate::exit::{Exit, Failure};

pub(super) fn schema() -> Result<Exit, Failure> {
    print(&json(&sluice_config::schema())?)
}

pub(super) fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub(super) fn man() -> Result<Exit, Failure> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
    rendered.map_err(|e| Failure::io("manual", &e))?;
    print(&String::from_utf8_lossy(&page))
}
