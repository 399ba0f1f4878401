//! Who held a run back: the proxy, the load side, or neither.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpu::Busy;

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
    /// The proxy's process tree.
    pub proxy: f64,
    /// The proxy, and interrupts on its core, of what others and the host left of the core.
    pub proxy_core: f64,
    pub load: f64,
    pub origin: f64,
    /// The fuller one of the load side's cores, reckoned like `proxy_core`.
    pub load_core: f64,
    /// Other processes on the proxy's core, and time that the host took: what disturbed the run.
    pub foreign: f64,
}

/// CPU time that was used in a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) window: Duration,
    pub(super) proxy: Duration,
    pub(super) load: Duration,
    pub(super) origin: Duration,
    pub(super) proxy_cpu: Busy,
    pub(super) load_cpu: Busy,
    pub(super) origin_cpu: Busy,
    pub(super) one_load_core: bool,
}

impl Usage {
    pub(super) fn shares(&self) -> Shares {
        let share = |used: Duration| used.as_secs_f64() / self.window.as_secs_f64().max(1e-9);
        let load_core = if self.one_load_core {
            self.core(self.load + self.origin, self.load_cpu)
        } else {
            self.core(self.load, self.load_cpu).max(self.core(self.origin, self.origin_cpu))
        };
        Shares {
            proxy: share(self.proxy),
            proxy_core: self.core(self.proxy, self.proxy_cpu),
            load: share(self.load),
            origin: share(self.origin),
            load_core,
            foreign: share(self.foreign(self.proxy, self.proxy_cpu)),
        }
    }

    /// How full a core was for those who ran on it, given what was left to them. A neighbour that
    /// takes half of the core must not make the proxy look idle.
    fn core(&self, ours: Duration, cpu: Busy) -> f64 {
        let left = self.window.saturating_sub(self.foreign(ours, cpu));
        let used = ours + cpu.interrupts;
        (used.as_secs_f64() / left.as_secs_f64().max(1e-9)).min(1.0)
    }

    fn foreign(&self, ours: Duration, cpu: Busy) -> Duration {
        cpu.tasks.saturating_sub(ours) + cpu.stolen
    }
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

/// CPU time is counted in ticks of 10 ms and a turn of the scheduler is lost here and there: a
/// core that does nothing else shows a few percent less than 1.
const FULL: f64 = 0.93;

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn busy(tasks: u64, interrupts: u64, stolen: u64) -> Busy {
        Busy { tasks: ms(tasks), interrupts: ms(interrupts), stolen: ms(stolen) }
    }

    #[test]
    fn the_fullest_core_is_the_bottleneck() {
        // (proxy, its core, load, origin, their core) in a window of 1,000 ms.
        let cases = [
            (990, busy(990, 0, 0), 300, 300, busy(600, 0, 0), Bottleneck::Proxy),
            (900, busy(900, 60, 0), 300, 300, busy(600, 0, 0), Bottleneck::Proxy),
            (500, busy(500, 0, 0), 500, 480, busy(980, 0, 0), Bottleneck::LoadSide),
            (500, busy(500, 0, 0), 300, 300, busy(600, 0, 0), Bottleneck::Neither),
            // A neighbour and the host take half of the core; the proxy has used all the rest.
            (490, busy(790, 0, 200), 300, 300, busy(600, 0, 0), Bottleneck::Proxy),
            // Both full: the proxy could do no more.
            (990, busy(990, 0, 0), 500, 490, busy(990, 0, 0), Bottleneck::Proxy),
            // No proxy at all.
            (0, busy(0, 0, 0), 500, 490, busy(990, 0, 0), Bottleneck::LoadSide),
        ];
        for (proxy, proxy_cpu, load, origin, load_cpu, expected) in cases {
            let usage = Usage {
                window: ms(1_000),
                proxy: ms(proxy),
                load: ms(load),
                origin: ms(origin),
                proxy_cpu,
                load_cpu,
                origin_cpu: load_cpu,
                one_load_core: true,
            };
            assert_eq!(usage.shares().bottleneck(), expected, "{usage:?}");
        }
    }

    #[test]
    fn an_empty_window_blames_nobody() {
        assert_eq!(Usage::default().shares().bottleneck(), Bottleneck::Neither);
    }
}
