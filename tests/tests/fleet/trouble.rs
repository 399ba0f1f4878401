//! 5,000 requests a second, three times the limit, with everything that can happen to a Redis:
//! figures to quote, a line for each, in five minutes. Run by hand, on a machine that has nothing else to do:
//!
//! `cargo test -p sluice-tests --test fleet -- --ignored --nocapture --test-threads 1`
//!
//! `FLEET_RATE=900` asks for less, where the machine can't do more; `FLEET_ONLY="slowed open"` tries
//! only that.

use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::load::{count, excess, percentile};
use sluice_tests::wait::pace;
use sluice_tests::{Cluster, Load, Redis, Seen, Sentinel, Signal, Sluice, eventually};

use super::{alone, clustered, config, state, three, watched};

const SPAN: Duration = Duration::from_secs(14);
const LIMITS: [&str; 3] = ["closed", "open", "local"];

/// When something is done to the store, after the beginning.
const FAULT: Duration = Duration::from_secs(5);
/// When it ends, if not by itself.
const MEND: Duration = Duration::from_secs(9);

/// Three times as much as is allowed.
fn long() -> Load {
    let rate = std::env::var("FLEET_RATE").ok().and_then(|rate| rate.parse().ok());
    Load { rate: rate.unwrap_or(5000), span: SPAN, keys: 1 }
}

fn limit() -> u32 {
    long().rate / 3
}

fn p99(seen: &[Seen], from: Instant, to: Instant) -> Duration {
    percentile(seen, 0.99, from..to)
}

/// Bars that were missed, in words.
type Missed = Vec<String>;

/// Runs the load with this trouble in the middle and prints what became of it.
fn figures(
    name: &str,
    lost: &str,
    gateways: &[Sluice],
    trouble: impl FnOnce() + Send,
    (mended_at, mend): (Duration, impl FnOnce() + Send),
) -> Missed {
    let begin = Instant::now();
    let (seen, mended, back) = thread::scope(|scope| {
        let load = scope.spawn(|| long().run(gateways));
        pace(begin + FAULT);
        trouble();
        pace(begin + mended_at);
        mend();
        let mended = Instant::now();
        eventually("all to be back", || {
            gateways.iter().all(|sluice| state(sluice) == "up").then_some(())
        });
        // Before the load has ended, which takes a few seconds yet.
        let back = mended.elapsed();
        (load.join().expect("the load"), mended, back)
    });
    let (rate, errors) = (f64::from(limit()), count(&seen, 500..600));
    let over = excess(&seen, rate, rate);
    let noticed = begin + FAULT + Duration::from_millis(100);
    let before = p99(&seen, begin + Duration::from_secs(2), begin + FAULT);
    let found = p99(&seen, begin + FAULT, noticed);
    let during = p99(&seen, noticed, begin + MEND);
    let used = used_again(&seen, mended);
    let bound = match stated(name, lost) {
        Some(bound) => bound,
        None => asked_within(&seen, begin + FAULT, mended + back),
    };
    let ms = |span: Duration| format!("{:.2}", span.as_secs_f64() * 1e3);
    let [before_ms, found_ms, during_ms] = [before, found, during].map(ms);
    let used_ms = used.map_or_else(|| "never".to_owned(), |used| used.as_millis().to_string());
    // In one go: another line may come in between.
    eprintln!(
        "| {lost:6} | {name:9} | {:>6} | {before_ms:>6} | {found_ms:>6} | {during_ms:>6} \
         | {errors:>3} | {:>6.0} | {bound:>6.0} | {:>5} | {used_ms:>5} |",
        seen.len(),
        over.max(0.0),
        back.as_millis(),
    );
    let late = Duration::from_secs(2);
    let bars = [
        (errors == 0, format!("{errors} answers are 5xx")),
        (over <= bound, format!("{over:.0} over, {bound:.0} are stated")),
        (during <= before + Duration::from_millis(2), format!("P99 {before:.2?}, {during:.2?}")),
        (back <= late, format!("back after {back:.0?}")),
        (used.is_some_and(|used| used <= late), format!("used again after {used:.0?}")),
    ];
    let missed = bars.into_iter().filter(|(holds, _)| !holds);
    missed.map(|(_, what)| format!("{name} {lost}: {what}")).collect()
}

const HEADER: &str = "
| lost   | trouble   |  asked | P99 before, first 100 ms, then | 5xx |   over | stated |  back |  used |
|--------|-----------|-------:|-------:|-------:|-------:|----:|-------:|-------:|------:|------:|";

/// What may be over, as the documentation states it. None: what comes while Redis is away.
fn stated(trouble: &str, lost: &str) -> Option<f64> {
    let rate = f64::from(limit());
    let troubled = MEND.saturating_sub(FAULT).as_secs_f64();
    match (trouble, lost) {
        (_, "open") => None,
        // A replica may lack the last writes: at most one burst.
        ("failed", _) => Some(rate),
        // Some gateways have lost it, and others have not.
        ("slowed", "local") => Some(rate * troubled),
        _ => Some(0.0),
    }
}

fn asked_within(seen: &[Seen], from: Instant, to: Instant) -> f64 {
    seen.iter().filter(|seen| (from..to).contains(&seen.began)).count() as f64
}

/// One that `FLEET_ONLY` does not leave out.
fn is_wanted(name: &str, lost: &str) -> bool {
    std::env::var("FLEET_ONLY").map_or(true, |only| only == format!("{name} {lost}"))
}

/// How long after that the limit was used to four fifths at least, and no more than it may be, for
/// a quarter of a second.
fn used_again(seen: &[Seen], mended: Instant) -> Option<Duration> {
    let window = Duration::from_millis(250);
    let usual = f64::from(limit()) * window.as_secs_f64();
    let mut starts = (0..100_u32).map(|n| Duration::from_millis(25) * n);
    starts.find(|start| {
        let span = mended + *start..mended + *start + window;
        let ended = seen.iter().filter(|seen| span.contains(&seen.ended));
        let admitted = ended.filter(|seen| seen.status == 200).count() as f64;
        (0.8 * usual..=1.2 * usual).contains(&admitted)
    })
}

#[test]
#[ignore = "takes 20 s and wants a quiet machine"]
fn the_limit_is_used_to_the_full() {
    let Some(redis) = Redis::start() else { return };
    let gateways = three(&config(&alone(&redis), limit(), "closed"));
    let began = Instant::now();
    let seen = long().run(&gateways);
    let spent = began.elapsed().as_secs_f64();
    let (calls, waited) = (redis.calls("evalsha"), waited(&gateways));
    let (rate, asked) = (f64::from(limit()), seen.len() as u64);
    let (most, admitted) = (rate * (1.0 + spent), count(&seen, 200..201));
    eprintln!(
        "asked {asked} admitted {admitted} of {most:.0} ({:.2} %) calls {calls} (1 for {}) \
         waited {waited:.0} over {:.0}",
        100.0 * admitted as f64 / most,
        asked / calls.max(1),
        excess(&seen, rate, rate)
    );
    assert!(excess(&seen, rate, rate) <= 0.0);
    assert!(admitted as f64 >= 0.99 * most, "{admitted} of {most:.0}");
    if long().rate >= 5000 {
        assert!(calls * 100 <= asked, "{calls} for {asked}");
    }
}

#[test]
#[ignore = "takes a minute and wants a quiet machine"]
fn a_shared_limit_costs_no_time() {
    let Some(redis) = Redis::start() else { return };
    let shared = config(&alone(&redis), limit(), "closed");
    let own = shared.replace("store = \"redis\"\nlost = \"closed\"\n", "");
    let shared = three(&shared);
    let own: Vec<_> = (0..3).map(|_| Sluice::start(&own)).collect();
    // In turn, so that whatever else the machine does meets both.
    let load = Load { span: Duration::from_secs(3), ..long() };
    let tail = |gateways: &[Sluice]| {
        let (began, seen) = (Instant::now(), load.run(gateways));
        p99(&seen, began + Duration::from_secs(1), began + load.span)
    };
    let (mut ours, mut theirs): (Vec<_>, Vec<_>) =
        (0..9).map(|_| (tail(&shared), tail(&own))).unzip();
    ours.sort_unstable();
    theirs.sort_unstable();
    let ratio = ours[4].as_secs_f64() / theirs[4].as_secs_f64();
    let waited = waited(&shared);
    eprintln!("P99 {:.2?}, with local limits {:.2?}: {ratio:.2}", ours[4], theirs[4]);
    eprintln!("all: {ours:.2?}, {theirs:.2?}; waited: {waited:.0} of {}", 27 * load.rate);
    assert!(ratio <= 1.2, "{ratio:.2}");
}

/// Requests that waited for the store, over all gateways.
fn waited(gateways: &[Sluice]) -> f64 {
    gateways.iter().map(|sluice| sluice.metrics()["sluice_store_parked_total"]).sum()
}

#[test]
#[ignore = "takes 3 minutes and wants a quiet machine"]
fn whatever_happens_to_one_redis() {
    let mut missed = Missed::new();
    eprintln!("{HEADER}");
    for lost in LIMITS {
        for name in ["killed", "stopped", "slowed", "flushed"] {
            if !is_wanted(name, lost) {
                continue;
            }
            let Some(mut redis) = Redis::start() else { return };
            let gateways = three(&config(&alone(&redis), limit(), lost));
            match name {
                "killed" => {
                    let redis = std::sync::Mutex::new(&mut redis);
                    let kill = || redis.lock().expect("a Redis").kill();
                    let start = || redis.lock().expect("a Redis").restart();
                    missed.extend(figures(name, lost, &gateways, kill, (MEND, start)));
                }
                "stopped" => {
                    let stop = || redis.signal(Signal::STOP);
                    let go_on = || redis.signal(Signal::CONT);
                    missed.extend(figures(name, lost, &gateways, stop, (MEND, go_on)));
                }
                "slowed" => {
                    // Half of the time it does not answer, for 60 ms each time.
                    let slow = || {
                        let end = Instant::now() + MEND.saturating_sub(FAULT);
                        while Instant::now() < end {
                            drop(redis.try_ask(&["CLIENT", "PAUSE", "60", "ALL"]));
                            pace(Instant::now() + Duration::from_millis(120));
                        }
                    };
                    missed.extend(figures(name, lost, &gateways, slow, (MEND, || ())));
                }
                _ => {
                    let flush = || drop(redis.ask(&["FLUSHALL"]));
                    missed.extend(figures(name, lost, &gateways, flush, (FAULT, || ())));
                }
            }
        }
    }
    assert_eq!(missed, Missed::new());
}

#[test]
#[ignore = "takes 2 minutes and wants a quiet machine"]
fn what_a_fail_over_and_a_reshard_cost() {
    let mut missed = Missed::new();
    eprintln!("{HEADER}");
    for lost in LIMITS {
        if is_wanted("failed", lost) {
            missed.extend(failed_over(lost));
        }
        if is_wanted("resharded", lost) {
            missed.extend(resharded(lost));
        }
    }
    assert_eq!(missed, Missed::new());
}

fn failed_over(lost: &str) -> Missed {
    let Some(mut primary) = Redis::start() else { return Missed::new() };
    let replica = primary.replica();
    let sentinel = Sentinel::over(&primary);
    let gateways = three(&config(&watched(&sentinel), limit(), lost));
    let wait = || {
        let over = || (sentinel.primary() == replica.addr().port()).then_some(());
        eventually("a fail-over", over);
    };
    figures("failed", lost, &gateways, || primary.kill(), (FAULT, wait))
}

fn resharded(lost: &str) -> Missed {
    let Some(cluster) = Cluster::start() else { return Missed::new() };
    let gateways = three(&config(&clustered(&cluster), limit(), lost));
    let calls = |node: &Redis| node.calls("evalsha");
    let mut client = gateways[0].client();
    eventually("a key that is counted", || {
        (client.ask("/", "X-Key: 0\r\n").status() == 200).then_some(())
    });
    let holder = cluster.nodes.iter().position(|node| calls(node) > 0).unwrap_or(0);
    let reshard = || cluster.reshard(holder, (holder + 1) % 3);
    figures("resharded", lost, &gateways, reshard, (FAULT, || ()))
}
