//! A brown-out: sixteen workers before an origin that can do so much and no more, and of a sudden
//! only half of it, while clients ask for twice what it ever could.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::decision::Event;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::Plan;
use sluice_policy::shed::gates;
use sluice_policy::sim::night::Night;
use sluice_policy::time::Instant;

const WORKERS: u64 = 16;

/// An origin of so many servers and one queue.
struct Origin {
    /// When each server is free.
    free: BinaryHeap<Reverse<u64>>,
    servers: usize,
    service: Service,
}

/// How long one request takes a server.
#[derive(Clone, Copy, Debug)]
enum Service {
    Even(u64),
    /// Exponential, by its mean.
    Chance(u64),
    /// Nine of ten are quick, and one takes ten times as long as the mean of those.
    Mixed(u64),
}

impl Service {
    /// In microseconds.
    fn draw(self, dice: &mut Dice) -> u64 {
        match self {
            Self::Even(us) => us,
            Self::Chance(us) => {
                // -ln(u), in parts of 1024, by halvings: good enough for a queue.
                let mut u = dice.below(1 << 20) + 1;
                let mut nats = 0;
                while u < 1 << 19 {
                    u <<= 1;
                    nats += 710;
                }
                let rest = (1 << 20) - u;
                us * (nats + rest * 1024 / (1 << 20) * 12 / 10) / 1024
            }
            Self::Mixed(us) => {
                let us = us * 10 / 19;
                if dice.below(10) == 0 { us * 10 } else { us }
            }
        }
    }

    fn times(self, n: u64) -> Self {
        match self {
            Self::Even(us) => Self::Even(us * n),
            Self::Chance(us) => Self::Chance(us * n),
            Self::Mixed(us) => Self::Mixed(us * n),
        }
    }

    fn mean_us(self) -> u64 {
        match self {
            Self::Even(us) | Self::Chance(us) | Self::Mixed(us) => us,
        }
    }
}

impl Origin {
    fn new(servers: usize, service: Service) -> Self {
        let free = (0..servers).map(|_| Reverse(0)).collect();
        Self { free, servers, service }
    }

    /// From now on it has so many servers; what the others had begun is lost to nobody.
    fn resize(&mut self, servers: usize) {
        while self.free.len() > servers {
            self.free.pop();
        }
        while self.free.len() < servers {
            self.free.push(Reverse(0));
        }
        self.servers = servers;
    }

    fn take(&mut self, now: Instant, dice: &mut Dice) -> Duration {
        let now_us = now.as_nanos() / 1_000;
        let Reverse(free) = self.free.pop().unwrap();
        let done = free.max(now_us) + self.service.draw(dice).max(1);
        self.free.push(Reverse(done));
        Duration::from_micros(done - now_us)
    }

    fn capacity(&self) -> u64 {
        self.servers as u64 * 1_000_000 / self.service.mean_us()
    }
}

#[derive(Debug)]
struct Stretch {
    good: u64,
    p99: Duration,
    shed: u64,
}

/// Lets time pass and says what clients saw of it.
fn stretch(night: &mut Night, origin: &mut Origin, time: u64, rate: u64) -> Stretch {
    night.done.clear();
    let answer = Some(Event::Responded { status: 200 });
    let mut react = |_, now: Instant, dice: &mut Dice| (origin.take(now, dice), answer);
    night.pass(Duration::from_millis(time), rate, &mut react, &mut |_| {});
    let good = night.done.iter().filter(|done| done.answer.is_none());
    let mut took: Vec<_> = good.map(|done| done.took).collect();
    took.sort_unstable();
    let shed = night.done.iter().filter(|done| done.answer.is_some()).count() as u64;
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    Stretch { good: took.len() as u64, p99, shed }
}

fn plan(adaptive: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = [\"a:1\"]\nadaptive = {adaptive}\n\
         [route.r]\nmatch = \"/\"\nto = \"a\"\ntimeout = \"60s\"\nretries = 0\n"
    ))
}

const ORIGINS: [(usize, Service); 9] = [
    (64, Service::Even(20_000)),
    (64, Service::Chance(20_000)),
    (64, Service::Mixed(20_000)),
    (16, Service::Even(5_000)),
    (16, Service::Chance(5_000)),
    (16, Service::Mixed(50_000)),
    (8, Service::Chance(20_000)),
    (4, Service::Even(5_000)),
    (4, Service::Chance(10_000)),
];

/// What clients saw of an origin that is asked for too much, then can do only half, then all. The
/// seconds in which nobody can know yet are in it.
fn night(servers: usize, service: Service, seed: u64) -> [(u64, u64); 3] {
    let plan = plan("\"on\"");
    let mut night = Night::new(&plan, WORKERS, seed);
    let mut origin = Origin::new(servers, service);
    let full = origin.capacity();
    stretch(&mut night, &mut origin, 2_000, full / 2);
    let quiet = stretch(&mut night, &mut origin, 20_000, full / 2);
    assert_eq!(quiet.shed, 0, "nothing is shed of what can be done: {servers} {service:?}");
    let over = stretch(&mut night, &mut origin, 20_000, full * 2);
    origin.resize(servers / 2);
    let half = stretch(&mut night, &mut origin, 40_000, full * 2);
    origin.resize(servers);
    let back = stretch(&mut night, &mut origin, 20_000, full * 2);
    stretch(&mut night, &mut origin, 60_000, 0);
    let view = gates(&plan, &night.ledger).next().unwrap().1;
    assert_eq!(view.busy, 0, "every seat comes back");
    let p99 = quiet.p99.as_micros();
    let seen = |s: &Stretch, can: u64| {
        (s.good * 100 / can, u64::try_from(s.p99.as_micros() * 100 / p99).unwrap())
    };
    [seen(&over, full * 20), seen(&half, full / 2 * 40), seen(&back, full * 20)]
}

#[test]
fn half_an_origin_under_twice_its_load_does_what_it_can_and_answers_in_time() {
    let mut bad = Vec::new();
    for ((servers, service), seed) in ORIGINS.into_iter().zip(7..) {
        let seen = night(servers, service, seed);
        println!("{servers} {service:?}: goodput and p99 in percent, over, half, back: {seen:?}");
        if seen.iter().any(|(good, late)| *good < 90 || *late > 200) {
            bad.push((servers, service, seen));
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn without_a_limit_everybody_waits() {
    let plan = plan("\"off\"");
    let mut night = Night::new(&plan, WORKERS, 1);
    let mut origin = Origin::new(16, Service::Even(5_000));
    let full = origin.capacity();
    let over = stretch(&mut night, &mut origin, 5_000, full * 2);
    assert!(over.p99 > Duration::from_secs(2), "{over:?}");
    assert_eq!(gates(&plan, &night.ledger).count(), 0);
}

#[test]
fn an_origin_that_is_slower_but_not_busy_is_soon_believed() {
    for (service, seed) in [(Service::Even(20_000), 3), (Service::Chance(20_000), 4)] {
        let plan = plan("{ initial = 100 }");
        let mut night = Night::new(&plan, WORKERS, seed);
        let mut origin = Origin::new(400, service);
        stretch(&mut night, &mut origin, 10_000, 2_000);
        origin.service = service.times(4);
        let first = stretch(&mut night, &mut origin, 5_000, 2_000);
        let then = stretch(&mut night, &mut origin, 20_000, 2_000);
        println!("{service:?}: {first:?}, then {then:?}");
        assert!(first.shed * 5 < first.good, "{service:?}: {first:?}");
        assert!(then.shed * 100 < then.good, "{service:?}: {then:?}");
    }
}

#[test]
fn a_limit_is_kept_within_its_bounds_and_slow_answers_lower_it() {
    let plan = plan("{ min = 5, max = 30, slow = \"50ms\" }");
    let mut night = Night::new(&plan, WORKERS, 5);
    let mut origin = Origin::new(400, Service::Even(20_000));
    let limit = |night: &Night| gates(&plan, &night.ledger).next().unwrap().1;
    stretch(&mut night, &mut origin, 5_000, 5_000);
    assert_eq!(limit(&night).limit, 30, "{:?}", limit(&night));
    origin.service = Service::Even(80_000);
    stretch(&mut night, &mut origin, 10_000, 5_000);
    assert!((5..=6).contains(&limit(&night).limit), "{:?}", limit(&night));
}
