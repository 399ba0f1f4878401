//! What can be said of a run in a number: names, which end is good, and how people read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::human_us;
use crate::report::grouped;
use crate::report::spread::Good;

/// What one run showed.
pub type Figures = BTreeMap<Kind, f64>;

/// In the order in which reports list them. Times are in microseconds unless they say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    RequestsPerSecond,
    /// CPU time of the proxy's process tree.
    CpuUsPerRequest,
    /// Sent and received by the load.
    GbPerSecond,
    CpuSecondsPerGb,
    /// What the proxy's memory grew by at the most, over the connections that were there.
    PeakKbPerConnection,
    /// The same once they are at rest.
    RestKbPerConnection,
    /// CPU time of the proxy over the window; one core is 100.
    ProxyCpuPercent,
    P50,
    P90,
    P99,
    #[serde(rename = "p99_9")]
    P999,
    #[serde(rename = "p99_99")]
    P9999,
    Max,
    /// Of the same load with nothing beside it.
    P50Alone,
    P99Alone,
    P50Beside,
    P99Beside,
    /// P99 beside over P99 alone.
    P99Raised,
    /// What stood beside, had.
    GreedyMbPerSecond,
    GreedyRequestsPerSecond,
    /// When the first and the last half head was given up, in seconds since it was sent.
    FirstClosed,
    LastClosed,
    /// Half heads that were answered 408.
    Answered408,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "requests/s",
            Self::CpuUsPerRequest => "CPU µs/request",
            Self::GbPerSecond => "GB/s",
            Self::CpuSecondsPerGb => "CPU s/GB",
            Self::PeakKbPerConnection => "peak KB/connection",
            Self::RestKbPerConnection => "KB/connection at rest",
            Self::ProxyCpuPercent => "proxy's CPU %",
            Self::P50 => "P50",
            Self::P90 => "P90",
            Self::P99 => "P99",
            Self::P999 => "P99.9",
            Self::P9999 => "P99.99",
            Self::Max => "max",
            Self::P50Alone => "P50 alone",
            Self::P99Alone => "P99 alone",
            Self::P50Beside => "P50 beside",
            Self::P99Beside => "P99 beside",
            Self::P99Raised => "P99 raised",
            Self::GreedyMbPerSecond => "greedy MB/s",
            Self::GreedyRequestsPerSecond => "greedy requests/s",
            Self::FirstClosed => "first closed",
            Self::LastClosed => "last closed",
            Self::Answered408 => "408",
        }
    }

    /// None: no proxy is better for more or less of it.
    pub fn good(self) -> Option<Good> {
        match self {
            Self::RequestsPerSecond | Self::GbPerSecond => Some(Good::High),
            Self::CpuUsPerRequest
            | Self::CpuSecondsPerGb
            | Self::PeakKbPerConnection
            | Self::RestKbPerConnection
            | Self::P50
            | Self::P90
            | Self::P99
            | Self::P999
            | Self::P9999
            | Self::Max
            | Self::P50Alone
            | Self::P99Alone
            | Self::P50Beside
            | Self::P99Beside => Some(Good::Low),
            Self::ProxyCpuPercent
            | Self::P99Raised
            | Self::GreedyMbPerSecond
            | Self::GreedyRequestsPerSecond
            | Self::FirstClosed
            | Self::LastClosed
            | Self::Answered408 => None,
        }
    }

    pub fn show(self, value: f64) -> String {
        match self {
            Self::RequestsPerSecond
            | Self::GreedyMbPerSecond
            | Self::GreedyRequestsPerSecond
            | Self::Answered408 => grouped(value),
            Self::CpuUsPerRequest => format!("{value:.1}"),
            Self::GbPerSecond | Self::CpuSecondsPerGb => format!("{value:.3}"),
            Self::PeakKbPerConnection | Self::RestKbPerConnection | Self::ProxyCpuPercent => {
                format!("{value:.2}")
            }
            Self::P99Raised => format!("{value:.2} times"),
            Self::FirstClosed | Self::LastClosed => format!("{value:.2} s"),
            Self::P50
            | Self::P90
            | Self::P99
            | Self::P999
            | Self::P9999
            | Self::Max
            | Self::P50Alone
            | Self::P99Alone
            | Self::P50Beside
            | Self::P99Beside => human_us(value),
        }
    }
}
