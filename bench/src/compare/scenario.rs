//! The work that peers are compared on: presets with names.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Result;

use crate::load::{Arrivals, Greed, Head, PIPELINED, Pace, Target, Work};

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
    /// 4 connections kept alive, 64 MiB down, flat out
    Down,
    /// 4 connections kept alive, 64 MiB up, flat out
    Up,
    /// --crowd connections kept alive, one request each, and then at rest
    Idle,
    /// Open loop at --rate over 16 connections, beside --crowd heads that are sent by half
    Half,
    /// Open loop at --rate over 64 connections, beside one download as fast as it goes
    BesideStream,
    /// The same, beside one client that sends 10,000 requests at once, again and again
    BesidePipeline,
}

/// What is done with the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Load,
    /// Connections that have had their answer, and no load.
    Rest,
    Beside(Beside),
}

/// Who is beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Greed(Greed),
    /// Connections that have sent half a head.
    Halves,
}

/// One preset with what the command line adds.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub preset: Preset,
    pub rate: NonZeroU32,
    /// Connections that are idle, or send half a head.
    pub crowd: u32,
    pub warm_up: Duration,
    /// Also how long a head may take, where heads are sent by half.
    pub duration: Duration,
    pub seed: u64,
    /// Load and origin may be one thread, if the preset allows it.
    pub together: bool,
}

/// A load in numbers.
struct Shape {
    connections: u32,
    paced: bool,
    connect_each: bool,
    answer_bytes: u64,
    upload_bytes: u64,
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
            Self::Down => "down",
            Self::Up => "up",
            Self::Idle => "idle",
            Self::Half => "half",
            Self::BesideStream => "beside-stream",
            Self::BesidePipeline => "beside-pipeline",
        }
    }

    pub(super) fn act(self) -> Act {
        match self {
            Self::Plain
            | Self::Few
            | Self::Many
            | Self::Pieces
            | Self::Limit
            | Self::Conn
            | Self::Rate
            | Self::Large
            | Self::Down
            | Self::Up => Act::Load,
            Self::Idle => Act::Rest,
            Self::Half => Act::Beside(Beside::Halves),
            Self::BesideStream => Act::Beside(Beside::Greed(Greed::Stream)),
            Self::BesidePipeline => Act::Beside(Beside::Greed(Greed::Pipeline)),
        }
    }

    /// Whether it is there for its latencies: then nobody is flat out who could go before all
    /// others for good.
    pub(super) fn is_timed(self) -> bool {
        self.shape().paced
    }

    /// Whether load and origin can be one thread that never sleeps. Not beside others, to whom it
    /// would leave nothing, and not where one would wait while the other copies much.
    fn is_short(self) -> bool {
        let Shape { answer_bytes, upload_bytes, .. } = self.shape();
        self.act() == Act::Load && answer_bytes <= SHORT_BYTES && upload_bytes == 0
    }

    fn shape(self) -> Shape {
        let plain = Shape {
            connections: 64,
            paced: false,
            connect_each: false,
            answer_bytes: 128,
            upload_bytes: 0,
        };
        match self {
            Self::Plain | Self::Limit | Self::Idle => plain,
            Self::Few => Shape { connections: 8, ..plain },
            Self::Many => Shape { connections: 512, ..plain },
            Self::Conn => Shape { connect_each: true, ..plain },
            Self::Rate => Shape { connections: 256, paced: true, ..plain },
            Self::Half => Shape { connections: 16, paced: true, ..plain },
            Self::BesideStream | Self::BesidePipeline => Shape { paced: true, ..plain },
            Self::Pieces => Shape { connections: 16, answer_bytes: 64 << 10, ..plain },
            Self::Large => Shape { connections: 16, answer_bytes: 1 << 20, ..plain },
            Self::Down => Shape { connections: 4, answer_bytes: 64 << 20, ..plain },
            Self::Up => Shape { connections: 4, upload_bytes: 64 << 20, ..plain },
        }
    }
}

impl Scenario {
    pub fn describe(&self) -> String {
        let Self { rate, duration, crowd, .. } = self;
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
            Preset::Down => "4 connections kept alive, 64 MiB down, flat out".to_owned(),
            Preset::Up => "4 connections kept alive, 64 MiB up, flat out".to_owned(),
            Preset::Idle => format!("{crowd} connections at rest, after one request each"),
            Preset::Half => {
                format!("open loop at {rate}/s over 16 connections, beside {crowd} half heads")
            }
            Preset::BesideStream => {
                format!("open loop at {rate}/s over 64 connections, beside one endless download")
            }
            Preset::BesidePipeline => format!(
                "open loop at {rate}/s over 64 connections, beside one with {PIPELINED} requests at once"
            ),
        };
        let place = if self.is_together() { ", load and origin on one thread" } else { "" };
        format!("{what}, {:.1} s a run{place}", duration.as_secs_f64())
    }

    /// Whether load and origin are one thread.
    pub(super) fn is_together(&self) -> bool {
        self.together && self.preset.is_short()
    }

    /// Content bytes of every answer.
    pub fn answer_bytes(&self) -> u64 {
        self.preset.shape().answer_bytes
    }

    /// The path asks the origin for the size, so that whatever is in between takes part.
    pub fn path(&self) -> String {
        format!("/bench?size={}", self.answer_bytes())
    }

    /// The load for a target on this port.
    pub fn work(&self, port: u16) -> Result<Work> {
        let Shape { connections, paced, connect_each, upload_bytes, .. } = self.preset.shape();
        let pace = match paced {
            true => Pace::Open { rate: self.rate, arrivals: Arrivals::Constant },
            false => Pace::Closed,
        };
        let limited = self.preset == Preset::Limit;
        let headers = limited.then(|| ("X-Api-Key".to_owned(), "bench-1".to_owned()));
        let method = if upload_bytes > 0 { "POST" } else { "GET" };
        Ok(Work {
            target: Target::resolve(&format!("http://127.0.0.1:{port}{}", self.path()), false)?,
            head: Head {
                method: method.parse().map_err(anyhow::Error::msg)?,
                headers: headers.into_iter().collect(),
            },
            body_bytes: upload_bytes,
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

/// The longest answer of a load that is one thread with its origin.
const SHORT_BYTES: u64 = 64 << 10;
