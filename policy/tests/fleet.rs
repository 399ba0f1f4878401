//! Limits over several gateways: never over the limit while the store is up, bounded when it is
//! not, whatever the network does.

#![expect(clippy::unwrap_used, reason = "a test may")]

#[path = "fleet/kinds.rs"]
mod kinds;
#[path = "fleet/world.rs"]
mod world;
mod written;

use std::sync::Arc;

use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::Plan;
use sluice_policy::sim::reserve::Mutant;

use crate::world::{MS, Network, SEC, Upset, World, excess};

const QUIET: Network = Network { delay: (150, 400), loss: 0 };

fn plan(nodes: usize, rate: &str, burst: u64, lost: &str) -> Arc<Plan> {
    limited(nodes, &format!("rate = \"{rate}\"\nburst = {burst}\nlost = \"{lost}\"\n"))
}

fn limited(nodes: usize, limit: &str) -> Arc<Plan> {
    written::plan(&format!(
        "nodes = {nodes}\n[limit.fair]\nkey = [\"ip\"]\nstore = \"redis\"\n{limit}\
         [route.r]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\nlimits = [\"fair\"]\n"
    ))
}

/// Requests at a rate a second over all nodes, at random moments, for so many microseconds.
fn load(world: &mut World, dice: &mut Dice, nodes: u64, rate: u64, span: u64) {
    let total = rate * span / SEC;
    for _ in 0..total {
        let at = world.now + dice.below(span);
        // Skewed: the first node gets the most.
        let node = dice.below(nodes).min(dice.below(nodes));
        world.request(at, usize::try_from(node).unwrap());
    }
}

#[test]
fn a_leased_limit_is_used_to_the_full_and_never_beyond() {
    let mut world = World::new(&plan(3, "1000/s", 1000, "closed"), 1, 3, 2, QUIET);
    load(&mut world, &mut Dice::new(2), 3, 3000, 10 * SEC);
    world.run_until(12 * SEC);
    let (admitted, most) = (world.admitted.len() as u64, 1000 + 10 * 1000);
    assert_eq!(excess(&world.admitted, 1000, 1, 1000), 0);
    assert!(admitted <= most && admitted * 100 >= most * 97, "{admitted} of {most}");
    assert!(world.commands * 100 <= world.requests, "{} commands", world.commands);
    assert!((0..3).all(|node| world.admitted_by(node) > admitted / 6), "each has its share");
    assert_eq!(world.held(), 0, "what was not used has gone back");
}

#[test]
fn over_twenty_seconds_nearly_nothing_of_a_limit_is_lost() {
    for rate in [300, 1667, 10_000] {
        let written = plan(3, &format!("{rate}/s"), rate, "closed");
        let mut world = World::new(&written, 1, 3, 2, QUIET);
        load(&mut world, &mut Dice::new(2), 3, 3 * rate, 20 * SEC);
        world.run_until(22 * SEC);
        let (admitted, most) = (world.admitted.len() as u64, 21 * rate);
        assert_eq!(excess(&world.admitted, SEC, rate, rate), 0);
        assert!(admitted <= most && admitted * 100 >= most * 99, "{rate}/s: {admitted} of {most}");
        let bound = if rate < 1667 { 40 } else { 100 };
        assert!(world.commands * bound <= world.requests, "{rate}/s: {} commands", world.commands);
    }
}

#[test]
fn a_warm_request_does_not_wait() {
    for (rate, load_rate) in [(1000, 3000), (1000, 1100), (1000, 500), (10_000, 30_000)] {
        let written = plan(3, &format!("{rate}/s"), rate, "closed");
        let mut world = World::new(&written, 1, 3, 2, QUIET);
        load(&mut world, &mut Dice::new(2), 3, load_rate, 5 * SEC);
        world.run_until(2 * SEC);
        let cold = world.parked();
        world.run_until(6 * SEC);
        let (parked, requests) = (world.parked() - cold, world.requests);
        assert!(parked * 1000 <= requests, "{load_rate} of {rate}: {parked} of {requests}");
    }
}

#[test]
fn a_slow_store_has_no_warm_request_wait() {
    // An answer takes 40 to 80 ms, which is not yet lost.
    for busy in [3000, 500] {
        let slow = Network { delay: (20 * MS, 40 * MS), loss: 0 };
        let mut world = World::new(&plan(3, "1000/s", 1000, "open"), 1, 3, 2, slow);
        load(&mut world, &mut Dice::new(2), 3, busy, 6 * SEC);
        world.run_until(2 * SEC);
        let cold = world.parked();
        world.run_until(8 * SEC);
        let (waited, admitted) = (world.parked() - cold, world.admitted.len() as u64);
        assert!(waited * 200 <= world.requests, "{busy}: {waited} of {}", world.requests);
        let most = (7 * 1000).min(6 * busy);
        assert!(admitted * 100 >= most * 95, "{busy}: {admitted} of {most}");
    }
}

#[test]
fn a_shadow_counts_what_it_would_admit_and_has_nobody_wait() {
    for (rate, burst, seconds) in [(1000, 1000, 10), (5, 5, 10)] {
        let limit = format!("rate = \"{rate}/s\"\nburst = {burst}\nshadow = true\n");
        let mut world = World::new(&limited(3, &limit), 1, 3, 2, QUIET);
        load(&mut world, &mut Dice::new(2), 3, 3 * rate, seconds * SEC);
        world.run_until((seconds + 2) * SEC);
        assert_eq!(world.statuses().into_iter().collect::<Vec<_>>(), [(200, world.requests)]);
        assert_eq!(world.slowest(), 0, "nobody waits");
        let (passed, most) = (world.shadowed(), burst + seconds * rate);
        // What passes in the time of an answer is owed.
        assert!(passed <= most + 3 + most / 100, "{passed} of {most}");
        assert!(passed * 100 >= most * 95, "{passed} of {most}");
    }
}

#[test]
fn one_a_minute_over_three_gateways_admits_one_a_minute() {
    let mut world = World::new(&plan(3, "1/min", 1, "closed"), 1, 3, 2, QUIET);
    for i in 0..300 {
        world.request(SEC + i * 500 * MS, usize::try_from(i % 3).unwrap());
    }
    world.run_until(152 * SEC);
    assert_eq!(world.admitted.len(), 3, "at 0, 60 and 120 s: {:?}", world.admitted);
    let gaps = world.admitted.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.clone().all(|gap| (59_900 * MS..61 * SEC).contains(&gap)));
}

#[test]
fn no_request_waits_longer_than_it_may() {
    for (rate, burst) in [("1000/s", 1000), ("1/min", 1)] {
        let slow = Network { delay: (20 * MS, 60 * MS), loss: 100 };
        let mut world = World::new(&plan(3, rate, burst, "local"), 1, 3, 2, slow);
        load(&mut world, &mut Dice::new(2), 3, 500, 4 * SEC);
        world.run_until(6 * SEC);
        // The bound, and twice a worker's own lateness.
        assert!(world.slowest() <= 24 * MS, "{} us", world.slowest());
        assert_eq!(world.statuses().values().sum::<u64>(), world.requests);
    }
}

#[test]
fn while_the_store_is_away_each_rule_does_what_it_says() {
    // (rule, at least, at most) of 3000 requests/s against 1000/s, over 4 s without a store.
    let table = [("open", 11_000, 12_100), ("closed", 0, 1000), ("local", 3000, 4100)];
    for (lost, least, most) in table {
        let mut world = World::new(&plan(3, "1000/s", 1000, lost), 1, 3, 2, QUIET);
        for node in 0..3 {
            for i in 0..6000 {
                world.request(SEC + i * MS, node);
            }
        }
        world.upset(2 * SEC, Upset::StoreStops);
        world.run_until(2 * SEC + 150 * MS);
        let before = world.admitted.len();
        world.run_until(6 * SEC + 150 * MS);
        let admitted = world.admitted.len() - before;
        assert!((least..=most).contains(&admitted), "{lost}: {admitted}");
        if lost != "open" {
            assert_eq!(excess(&world.admitted, 1000, 1, 1000), 0, "{lost}");
        }
    }
}

#[test]
fn recovery_is_no_burst_and_debts_are_paid() {
    let mut world = World::new(&plan(3, "1000/s", 1000, "local"), 1, 3, 2, QUIET);
    for node in 0..3 {
        for i in 0..9000 {
            world.request(SEC + i * MS, node);
        }
    }
    world.upset(2 * SEC, Upset::StoreStops);
    world.upset(4 * SEC, Upset::StoreGoesOn);
    world.run_until(6 * SEC);
    let back = world.admitted.len();
    world.run_until(9 * SEC);
    assert_eq!(excess(&world.admitted, 1000, 1, 1000), 0);
    let per_second = (world.admitted.len() - back) / 3;
    assert!((900..=1010).contains(&per_second), "in sync after 2 s: {per_second}");
}

/// What happens to them, at random.
fn upset(world: &mut World, dice: &mut Dice, nodes: u64, span: u64) {
    for _ in 0..dice.below(5) {
        let at = SEC + dice.below(span);
        let until = at + 20 * MS + dice.below(2 * SEC);
        let who = usize::try_from(dice.below(nodes)).unwrap();
        match dice.below(5) {
            0 => world.upset(at, Upset::Crash(who)),
            1 => {
                world.upset(at, Upset::Cut(who));
                world.upset(until, Upset::Mend(who));
            }
            2 => {
                world.upset(at, Upset::StoreStops);
                world.upset(until, Upset::StoreGoesOn);
            }
            3 => {
                world.upset(at, Upset::StoreStops);
                world.upset(until, Upset::StoreRestarts);
            }
            _ => {
                let jump = [-20, -3, -1, 1, 3, 20][usize::try_from(dice.below(6)).unwrap()];
                world.upset(at, Upset::ClockJumps(jump * i64::try_from(SEC).unwrap()));
            }
        }
    }
}

/// One run with random faults; how many were admitted beyond the bound.
fn fuzz(seed: u64, mutant: Option<Mutant>) -> u64 {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let (nodes, workers) = (2 + dice.below(4), 1 + dice.below(3));
    let pick =
        |dice: &mut Dice, all: &[u64]| all[usize::try_from(dice.below(all.len() as u64)).unwrap()];
    let rate = pick(&mut dice, &[10, 50, 200, 1000]);
    let burst = pick(&mut dice, &[1, rate / 10 + 1, rate, 3 * rate]);
    let delay = [(100, 450), (100, 10 * MS), (3 * MS, 40 * MS)];
    let network = Network {
        delay: delay[usize::try_from(dice.below(3)).unwrap()],
        loss: pick(&mut dice, &[0, 0, 20, 100]),
    };
    let terms = format!("{rate}/s");
    let plan = plan(usize::try_from(nodes).unwrap(), &terms, burst, "closed");
    let direct =
        plan.shared().any(|(_, _, t)| t.class == sluice_policy::mechanism::lease::Class::Direct);
    // A direct count is exact in the store; what clients see is blurred by how long answers take.
    let blur = if direct { network.delay.1 - network.delay.0 + 22 * MS } else { 0 };
    let mut world = World::new(&plan, seed, usize::try_from(nodes).unwrap(), workers, network);
    world.store.mutant = mutant;
    let span = 4 * SEC;
    let busy = pick(&mut dice, &[rate / 2, rate, 2 * rate, 3 * rate]).max(1);
    load(&mut world, &mut dice, nodes, busy, span);
    if dice.below(3) == 0 {
        // All at once, when nobody has asked for much.
        let at = SEC + dice.below(span);
        for _ in 0..2 * burst {
            let node = usize::try_from(dice.below(nodes)).unwrap();
            world.request(at + dice.below(100 * MS), node);
        }
    }
    upset(&mut world, &mut dice, nodes, span);
    world.run_until(span + 2 * SEC);
    excess(&world.admitted, SEC / rate, 1, burst + (rate * blur).div_ceil(SEC))
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how many seeds is the tester's to say")]
fn never_over_the_limit_whatever_happens() {
    // `SLUICE_SEEDS=10000` for a long run.
    let seeds = std::env::var("SLUICE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(256);
    let over: Vec<(u64, u64)> =
        (0..seeds).map(|seed| (seed, fuzz(seed, None))).filter(|(_, over)| *over > 0).collect();
    assert!(over.is_empty(), "(seed, over): {over:?}");
}

#[test]
fn a_store_that_is_broken_is_noticed() {
    for mutant in [Mutant::CapIgnoresOutstanding, Mutant::BornFull] {
        let caught = (0..256).any(|seed| fuzz(seed, Some(mutant)) > 0);
        assert!(caught, "{mutant:?}");
    }
}
