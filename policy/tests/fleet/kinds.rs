//! Windows, places and overrides over several gateways.

use std::sync::Arc;

use sluice_policy::mechanism::dice::Dice;
use sluice_policy::mechanism::lease::Class;
use sluice_policy::plan::Plan;
use sluice_policy::sim::reserve::Mutant;

use crate::world::{MS, Network, SEC, Upset, World, excess};
use crate::{QUIET, limited, load, upset, written};

fn window(nodes: usize, kind: &str, limit: u64, window: u64, strict: bool) -> Arc<Plan> {
    limited(
        nodes,
        &format!(
            "kind = \"{kind}\"\nrate = \"{limit}/{window}s\"\nlost = \"closed\"\n\
             strict = {strict}\n"
        ),
    )
}

/// The most that was admitted beyond `limit` in any window.
fn over(admitted: &[u64], limit: u64, window: u64) -> u64 {
    let mut worst = 0;
    let mut first = 0;
    for (i, at) in admitted.iter().enumerate() {
        while admitted[first] + window <= *at {
            first += 1;
        }
        worst = worst.max((i - first + 1) as u64);
    }
    worst.saturating_sub(limit)
}

#[test]
fn a_sliding_window_is_used_to_the_full_and_never_beyond() {
    for (limit, seconds, least) in [(1000, 1, 85), (3000, 10, 95), (60, 10, 99)] {
        let plan = window(3, "sliding", limit, seconds, false);
        let mut world = World::new(&plan, 1, 3, 2, QUIET);
        let rate = (3 * limit / seconds).max(30);
        load(&mut world, &mut Dice::new(2), 3, rate, 20 * SEC);
        world.run_until(22 * SEC);
        let (admitted, most) = (world.admitted.len() as u64, 20 * limit / seconds);
        // A count that is asked for one by one is seen by clients within an answer's time.
        let blur = if limit == 60 { 30 * MS } else { 0 };
        assert_eq!(over(&world.admitted, limit, seconds * SEC - blur), 0, "{limit}");
        assert!(admitted * 100 >= most * least, "{limit}: {admitted} of {most}");
        let shares: Vec<u64> = (0..3).map(|node| world.admitted_by(node)).collect();
        let fair = limit == 60 || shares.iter().all(|share| *share > admitted / 10);
        assert!(fair, "each has its share: {shares:?}");
        assert_eq!(world.held(), 0, "what was not used has gone back");
    }
}

#[test]
fn a_fixed_window_admits_its_number_in_each() {
    let plan = window(3, "fixed", 500, 2, false);
    let mut world = World::new(&plan, 1, 3, 2, QUIET);
    load(&mut world, &mut Dice::new(2), 3, 1000, 10 * SEC);
    world.run_until(12 * SEC);
    let in_window = |n: u64| {
        let span = n * 2 * SEC..(n + 1) * 2 * SEC;
        world.admitted.iter().filter(|at| span.contains(at)).count()
    };
    let counts: Vec<usize> = (0..6).map(in_window).collect();
    assert!(counts.iter().all(|n| *n <= 500), "{counts:?}");
    assert!(counts[1..5].iter().all(|n| *n >= 450), "{counts:?}");
}

/// One run with random faults; how many were admitted beyond the bound.
fn fuzz(seed: u64, mutant: Option<Mutant>) -> u64 {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let (nodes, workers) = (2 + dice.below(4), 1 + dice.below(3));
    let pick =
        |dice: &mut Dice, all: &[u64]| all[usize::try_from(dice.below(all.len() as u64)).unwrap()];
    let limit = pick(&mut dice, &[1, 10, 64, 100, 500, 2000]);
    let seconds = pick(&mut dice, &[1, 2]);
    let delay = [(100, 450), (100, 10 * MS), (3 * MS, 40 * MS)];
    let network = Network {
        delay: delay[usize::try_from(dice.below(3)).unwrap()],
        loss: pick(&mut dice, &[0, 0, 20, 100]),
    };
    let plan = window(usize::try_from(nodes).unwrap(), "sliding", limit, seconds, true);
    let direct = plan.shared().any(|(_, _, terms)| terms.class == Class::Direct);
    let blur = if direct { network.delay.1 - network.delay.0 + 22 * MS } else { 0 };
    let mut world = World::new(&plan, seed, usize::try_from(nodes).unwrap(), workers, network);
    world.store.mutant = mutant;
    let span = 5 * SEC;
    let busy = pick(&mut dice, &[limit / 2, limit, 3 * limit]) / seconds;
    load(&mut world, &mut dice, nodes, busy.max(3), span);
    if dice.below(3) == 0 {
        let at = SEC + dice.below(span);
        world.upset(at, Upset::ReplicaLags);
        world.upset(at + dice.below(SEC), Upset::FailsOver);
    }
    upset(&mut world, &mut dice, nodes, span);
    world.run_until(span + 2 * SEC);
    over(&world.admitted, limit, seconds * SEC - blur)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how many seeds is the tester's to say")]
fn never_over_a_window_whatever_happens() {
    let seeds = std::env::var("SLUICE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(192);
    let over: Vec<(u64, u64)> =
        (0..seeds).map(|seed| (seed, fuzz(seed, None))).filter(|(_, over)| *over > 0).collect();
    assert!(over.is_empty(), "(seed, over): {over:?}");
}

#[test]
fn a_window_that_is_broken_is_noticed() {
    for mutant in [Mutant::CapIgnoresOutstanding, Mutant::EarlySlots, Mutant::NoFence] {
        let caught = (0..256).any(|seed| fuzz(seed, Some(mutant)) > 0);
        assert!(caught, "{mutant:?}");
    }
}

fn places(nodes: usize, max: u64) -> Arc<Plan> {
    written::plan(&format!(
        "nodes = {nodes}\n[route.r]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\n\
         concurrency = {{ max = {max}, store = \"redis\", lost = \"closed\" }}\n"
    ))
}

#[test]
fn no_more_are_in_progress_than_may_be_over_all_gateways() {
    // (places, how long a request takes, the least that must have been used at once)
    for (max, takes, least) in [(1, 100 * MS, 1), (5, 50 * MS, 5), (200, 100 * MS, 190)] {
        let mut world = World::new(&places(3, max), 1, 3, 2, QUIET);
        world.takes = takes;
        let rate = 3 * max * SEC / takes;
        load(&mut world, &mut Dice::new(2), 3, rate, 4 * SEC);
        world.run_until(6 * SEC);
        assert!((least..=max).contains(&world.peak), "{} of {max}", world.peak);
        let most = max * 4 * SEC / takes;
        let admitted = world.admitted.len() as u64;
        assert!(admitted * 10 >= most * 6, "{admitted} of {most}");
        assert_eq!(world.held(), 0, "free places have gone back");
    }
}

#[test]
fn places_hold_through_crashes_losses_and_a_store_that_is_away() {
    let mut used = 0;
    for seed in 0..96 {
        let mut dice = Dice::new(seed);
        let (max, nodes) = ([1, 4, 30, 200][usize::try_from(dice.below(4)).unwrap()], 3);
        let network = Network { delay: (100, 5 * MS), loss: [0, 20][(seed % 2) as usize] };
        let mut world = World::new(&places(nodes, max), seed, nodes, 2, network);
        world.takes = 20 * MS + dice.below(700 * MS);
        let rate = (3 * max * SEC / world.takes).max(10);
        load(&mut world, &mut dice, 3, rate, 5 * SEC);
        let at = SEC + dice.below(3 * SEC);
        match dice.below(3) {
            0 => world.upset(at, Upset::Crash(0)),
            1 => {
                world.upset(at, Upset::StoreStops);
                world.upset(at + dice.below(2 * SEC), Upset::StoreGoesOn);
            }
            _ => {
                world.upset(at, Upset::StoreStops);
                world.upset(at + dice.below(SEC), Upset::StoreRestarts);
            }
        }
        world.run_until(8 * SEC);
        assert!(world.peak <= max, "seed {seed}: {} of {max}", world.peak);
        used += u64::from(world.peak == max);
    }
    assert!(used > 48, "all were used in {used} of 96");
}

#[test]
fn an_override_holds_at_once_and_what_was_spent_stays_spent() {
    let plan = limited(3, "rate = \"1/min\"\nburst = 1\n");
    let mut world = World::new(&plan, 1, 3, 2, QUIET);
    for i in 0..500 {
        world.request(SEC + i * 20 * MS, usize::try_from(i % 3).unwrap());
    }
    world.run_until(4 * SEC);
    assert_eq!(world.admitted.len(), 1);
    world.override_with(&plan, &[("fair/10.0.0.1", "10/s 10")]);
    world.run_until(9 * SEC);
    let raised = world.admitted.len() as u64;
    assert!((40..=52).contains(&raised), "10 a second from empty: {raised}");
    world.override_with(&plan, &[("fair/10.0.0.1", "1/min 1")]);
    world.run_until(11 * SEC);
    assert!(world.admitted.len() as u64 <= raised + 1, "no burst of what was left");
}

#[test]
fn a_reserved_limit_that_is_lowered_admits_what_is_left_of_it_at_most() {
    let plan = limited(3, "rate = \"1000/s\"\nburst = 1000\n");
    let mut world = World::new(&plan, 1, 3, 2, QUIET);
    load(&mut world, &mut Dice::new(2), 3, 3000, 8 * SEC);
    world.run_until(4 * SEC);
    world.override_with(&plan, &[("fair/10.0.0.1", "100/s 100")]);
    world.run_until(5 * SEC);
    let before = world.admitted.len();
    world.run_until(8 * SEC);
    let admitted = (world.admitted.len() - before) as u64;
    assert!((250..=310).contains(&admitted), "{admitted} in 3 s of 100/s");
    assert_eq!(excess(&world.admitted[before..], 10_000, 1, 100), 0);
}
