//! The work that peers are compared on: presets with names.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Result;

use crate::load::{Arrivals, Head, Pace, Target, Work};

/// The presets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 64 connections kept alive, 128 bytes down, flat out
    Plain,
    /// As plain, over 8 connections
    Few,
    /// As plain, over 512 connections
    Many,
    /// 16 connections kept alive, 64 KiB down, flat out
    Pieces,
    /// As plain, and every request counts against a limit by its X-Api-Key
    Limit,
    /// A new connection for every request, 64 at a time, 128 bytes down, flat out
    Conn,
    /// Open loop at --rate over 256 connections kept alive, 128 bytes down
    Rate,
    /// 16 connections kept alive, 1 MiB down, flat out
    Large,
}

/// One preset with what the command line adds.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub preset: Preset,
    pub rate: NonZeroU32,
    pub warm_up: Duration,
    pub duration: Duration,
    pub seed: u64,
}

impl Preset {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Few => "few",
            Self::Many => "many",
            Self::Pieces => "pieces",
            Self::Limit => "limit",
            Self::Conn => "conn",
            Self::Rate => "rate",
            Self::Large => "large",
        }
    }
}

impl Scenario {
    pub fn describe(&self) -> String {
        let Self { rate, duration, .. } = self;
        let what = match self.preset {
            Preset::Plain => "64 connections kept alive, 128 bytes down, flat out".to_owned(),
            Preset::Few => "8 connections kept alive, 128 bytes down, flat out".to_owned(),
            Preset::Many => "512 connections kept alive, 128 bytes down, flat out".to_owned(),
            Preset::Pieces => "16 connections kept alive, 64 KiB down, flat out".to_owned(),
            Preset::Limit => "as plain, and a limit on a header's value".to_owned(),
            Preset::Conn => {
                "a new connection for every request, 64 at a time, 128 bytes down".to_owned()
            }
            Preset::Rate => format!("open loop at {rate}/s over 256 connections, 128 bytes down"),
            Preset::Large => "16 connections kept alive, 1 MiB down, flat out".to_owned(),
        };
        format!("{what}, {:.1} s a run", duration.as_secs_f64())
    }

    /// Content bytes of every answer.
    pub fn answer_bytes(&self) -> u64 {
        match self.preset {
            Preset::Plain
            | Preset::Few
            | Preset::Many
            | Preset::Limit
            | Preset::Conn
            | Preset::Rate => 128,
            Preset::Pieces => 64 << 10,
            Preset::Large => 1 << 20,
        }
    }

    /// The path asks the origin for the size, so that whatever is in between takes part.
    pub fn path(&self) -> String {
        format!("/bench?size={}", self.answer_bytes())
    }

    /// The load for a target on this port.
    pub fn work(&self, port: u16) -> Result<Work> {
        let (connections, pace, connect_each) = match self.preset {
            Preset::Plain | Preset::Limit => (64, Pace::Closed, false),
            Preset::Few => (8, Pace::Closed, false),
            Preset::Many => (512, Pace::Closed, false),
            Preset::Conn => (64, Pace::Closed, true),
            Preset::Rate => {
                (256, Pace::Open { rate: self.rate, arrivals: Arrivals::Constant }, false)
            }
            Preset::Pieces | Preset::Large => (16, Pace::Closed, false),
        };
        let headers = match self.preset {
            Preset::Limit => vec![("X-Api-Key".to_owned(), "bench-1".to_owned())],
            Preset::Plain
            | Preset::Few
            | Preset::Many
            | Preset::Pieces
            | Preset::Conn
            | Preset::Rate
            | Preset::Large => Vec::new(),
        };
        Ok(Work {
            target: Target::resolve(&format!("http://127.0.0.1:{port}{}", self.path()), false)?,
            head: Head { method: "GET".parse().map_err(anyhow::Error::msg)?, headers },
            body_bytes: 0,
            connections,
            pace,
            connect_each,
            warm_up: self.warm_up,
            duration: self.duration,
            requests_max: u64::MAX,
            timeout: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            seed: self.seed,
            keep_ends: false,
        })
    }
}
