//! Load on several gateways at a rate, what became of each request, and oracles over it.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::Sluice;
use crate::wait::pace;

/// What became of one request, and when it was under way.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub status: u16,
    pub began: Instant,
    pub ended: Instant,
}

/// So many requests a second in all, for so long; the first gateway gets half, and each after it
/// half of the rest. Keys are taken in turn.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub rate: u32,
    pub span: Duration,
    pub keys: usize,
}

/// Connections to each gateway.
const CLIENTS: u32 = 4;

impl Load {
    /// In the order in which they ended.
    ///
    /// # Panics
    /// When a gateway closes a connection.
    #[must_use]
    pub fn run(self, gateways: &[Sluice]) -> Vec<Seen> {
        let begin = Instant::now();
        let last = gateways.len().saturating_sub(1);
        let part = |i: usize| self.rate >> (i.min(last.saturating_sub(1)) + 1);
        let mut seen: Vec<Seen> = thread::scope(|scope| {
            let clients = gateways.iter().enumerate().flat_map(|(i, sluice)| {
                let gap = Duration::from_secs(1) * CLIENTS / part(i).max(1);
                (0..CLIENTS).map(move |client| (sluice, gap, gap * client / CLIENTS))
            });
            let all: Vec<_> = clients
                .map(|(sluice, gap, late)| scope.spawn(move || self.one(sluice, gap, begin + late)))
                .collect();
            all.into_iter().flat_map(|one| one.join().expect("a client")).collect()
        });
        seen.sort_by_key(|seen| seen.ended);
        seen
    }

    fn one(self, sluice: &Sluice, gap: Duration, begin: Instant) -> Vec<Seen> {
        let (mut client, mut seen, mut next) = (sluice.client(), Vec::new(), begin);
        while next < begin + self.span {
            pace(next);
            let key = format!("X-Key: {}\r\n", seen.len() % self.keys);
            let began = Instant::now();
            let status = client.ask("/", &key).status();
            seen.push(Seen { status, began, ended: Instant::now() });
            // Who is behind makes good for it, but not for more than a moment.
            next = (next + gap).max(began - Duration::from_millis(50));
        }
        seen
    }
}

#[must_use]
pub fn count(seen: &[Seen], status: Range<u16>) -> u64 {
    seen.iter().filter(|seen| status.contains(&seen.status)).count() as u64
}

/// The most that was admitted beyond `burst + rate x time`, over every window, of requests that
/// share one key. What was admitted was so between the request's beginning and its end: whatever
/// order that allows is taken in favour of the gateway, so an excess is certain.
#[must_use]
pub fn excess(seen: &[Seen], burst: f64, rate: f64) -> f64 {
    let mut admitted: Vec<&Seen> = seen.iter().filter(|seen| seen.status == 200).collect();
    admitted.sort_by_key(|seen| seen.ended);
    let step = (admitted.len() / 700).max(1);
    let mut worst = f64::MIN;
    for (i, first) in admitted.iter().enumerate().step_by(step) {
        let mut n = 0.0;
        for last in &admitted[i..] {
            if last.began >= first.began {
                n += 1.0;
                let span = last.ended.duration_since(first.began).as_secs_f64();
                worst = worst.max(n - burst - rate * span);
            }
        }
    }
    worst
}

/// The time within which this share of those that began then were answered.
///
/// # Panics
/// When none did.
#[must_use]
pub fn percentile(seen: &[Seen], share: f64, began: Range<Instant>) -> Duration {
    let these = seen.iter().filter(|seen| began.contains(&seen.began));
    let mut took: Vec<Duration> = these.map(|seen| seen.ended - seen.began).collect();
    took.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let at = (took.len() as f64 * share) as usize;
    took[at.min(took.len() - 1)]
}
