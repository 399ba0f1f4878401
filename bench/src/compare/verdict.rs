//! Who held a run back: the proxy, the load side, or neither.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpu::Scheduled;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Its core had nothing left: the figures are the proxy's.
    Proxy,
    /// The load or the origin had nothing left: the proxy could do more.
    LoadSide,
    /// Both had room: a rate was kept, or something waited.
    Neither,
}

/// CPU shares in a measured window, 1 being a whole core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// What the proxy's process tree had of its core.
    pub proxy: f64,
    /// What it had or was waiting for: at 1 it was never without work.
    pub proxy_core: f64,
    pub load: f64,
    pub origin: f64,
    /// As `proxy_core`, for the fuller of the load's and the origin's core.
    pub load_core: f64,
    /// How long the proxy was ready while others had its core: what disturbed the run.
    pub proxy_waited: f64,
}

/// How tasks were scheduled in a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    pub(super) window: Duration,
    pub(super) proxy: Vec<Scheduled>,
    pub(super) load: Scheduled,
    pub(super) origin: Vec<Scheduled>,
    pub(super) one_load_core: bool,
}

impl Usage {
    pub(super) fn shares(&self) -> Shares {
        let load_core = if self.one_load_core {
            let both: Vec<_> = self.origin.iter().copied().chain([self.load]).collect();
            self.core(&both)
        } else {
            self.core(&self.origin).max(self.core(&[self.load]))
        };
        let waited = self.proxy.iter().map(|task| task.waited).max();
        Shares {
            proxy: self.share(ran(&self.proxy)),
            proxy_core: self.core(&self.proxy),
            load: self.share(self.load.ran),
            origin: self.share(ran(&self.origin)),
            load_core,
            proxy_waited: self.share(waited.unwrap_or_default()),
        }
    }

    /// How full a core was for these tasks: all that they ran, or the task that was most often
    /// running or ready to. A neighbour that takes half of the core must not make a proxy that
    /// wants all of it look idle; waits of several tasks are not added, they overlap.
    fn core(&self, tasks: &[Scheduled]) -> f64 {
        let wanted = tasks.iter().map(|task| task.ran + task.waited).max();
        self.share(ran(tasks).max(wanted.unwrap_or_default())).min(1.0)
    }

    fn share(&self, time: Duration) -> f64 {
        if self.window.is_zero() { 0.0 } else { time.as_secs_f64() / self.window.as_secs_f64() }
    }
}

fn ran(tasks: &[Scheduled]) -> Duration {
    tasks.iter().map(|task| task.ran).sum()
}

impl Shares {
    pub fn bottleneck(&self) -> Bottleneck {
        if self.proxy_core > FULL {
            Bottleneck::Proxy
        } else if self.load_core > FULL {
            Bottleneck::LoadSide
        } else {
            Bottleneck::Neither
        }
    }
}

impl Bottleneck {
    pub fn describe(self) -> &'static str {
        match self {
            Self::Proxy => "the proxy",
            Self::LoadSide => "the load side",
            Self::Neither => "neither",
        }
    }
}

/// A core that does nothing else shows a few percent less than 1: interrupts, and the time it
/// takes the other side to react to the edges of the window.
const FULL: f64 = 0.93;

#[cfg(test)]
mod tests {
    use super::*;

    fn task(ran_ms: u64, waited_ms: u64) -> Scheduled {
        Scheduled { ran: Duration::from_millis(ran_ms), waited: Duration::from_millis(waited_ms) }
    }

    #[test]
    fn the_fullest_core_is_the_bottleneck() {
        // In a window of 1,000 ms: the proxy's tasks, the load, the origin.
        let cases = [
            (vec![task(990, 0)], task(300, 200), task(300, 200), Bottleneck::Proxy),
            (vec![task(500, 0)], task(500, 480), task(480, 500), Bottleneck::LoadSide),
            (vec![task(500, 0)], task(300, 200), task(300, 200), Bottleneck::Neither),
            // A neighbour takes half of the core and the proxy waits for it.
            (vec![task(490, 480)], task(300, 0), task(300, 0), Bottleneck::Proxy),
            // A neighbour uses what the proxy leaves.
            (vec![task(200, 100)], task(300, 0), task(300, 0), Bottleneck::Neither),
            // Threads of one proxy that wait for each other are not full twice.
            (vec![task(300, 300), task(300, 300)], task(300, 0), task(300, 0), Bottleneck::Neither),
            (vec![task(500, 400), task(480, 400)], task(300, 0), task(300, 0), Bottleneck::Proxy),
            // Both full: the proxy could do no more.
            (vec![task(990, 0)], task(500, 490), task(490, 500), Bottleneck::Proxy),
            // No proxy at all.
            (vec![], task(500, 490), task(490, 500), Bottleneck::LoadSide),
        ];
        for (proxy, load, origin, expected) in cases {
            let window = Duration::from_secs(1);
            let usage = Usage { window, proxy, load, origin: vec![origin], one_load_core: true };
            assert_eq!(usage.shares().bottleneck(), expected, "{usage:?}");
        }
    }

    #[test]
    fn two_load_cores_are_judged_apart() {
        let usage = Usage {
            window: Duration::from_secs(1),
            load: task(600, 0),
            origin: vec![task(700, 0)],
            ..Usage::default()
        };
        assert_eq!(usage.shares().bottleneck(), Bottleneck::Neither);
        let one = Usage { one_load_core: true, ..usage };
        assert_eq!(one.shares().bottleneck(), Bottleneck::LoadSide);
    }

    #[test]
    fn an_empty_window_blames_nobody() {
        assert_eq!(Usage::default().shares().bottleneck(), Bottleneck::Neither);
    }
}
