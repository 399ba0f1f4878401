//! One night: of two servers one is killed, stopped, resets, talks nonsense, answers by halves or
//! slowly, something else every two seconds. Clients must not notice.
//!
//! `NIGHT_SECONDS=600 cargo nextest run --test night --no-capture` is ten minutes of it; a minute
//! unless said otherwise.
//!
//! What counts as a failed GET: any answer but the whole 200, and so also one that breaks off behind
//! its head.

#[path = "night/client.rs"]
mod client;
#[path = "night/victim.rs"]
mod victim;

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{Got, Guest};
use sluice_tests::wait::{Watched, moment};
use sluice_tests::{Config, Signal, Sluice, eventually};
use victim::{Heard, Victim};

/// Something else happens this often.
const EVERY: Duration = Duration::from_secs(2);

/// A fault lasts so long, and then all is well until the next.
const FAULT: Duration = Duration::from_millis(1000);

const OUT_WITHIN: Duration = Duration::from_secs(3);

const FAULTS: [&str; 10] = [
    "kill",
    "stop",
    "reset",
    "slow body",
    "garbage",
    "half head",
    "half body",
    "slow head",
    "kill amid bodies",
    "stop amid bodies",
];

const POSTS: usize = 10_000;
const POSTING: usize = 4;
const ASKING: usize = 4;

const UPSTREAM: &str = r#"
connections = 256
timeout = { connect = "500ms" }
breaker = "default"
eject = { breaker = { consecutive = 5, open_for = "300ms", open_max = "300ms", probes = 2, ramp = "50ms" } }
health = { path = "/healthz", every = "400ms", timeout = "400ms", fall = 3, rise = 2 }
"#;

const ROUTE: &str = r#"
timeout = "9s"
retries = { max = 4, on = ["reset", "timeout", "5xx"], per_try = "700ms", budget = "50%" }
"#;

#[test]
fn a_bad_night_is_boring_for_clients() {
    let night = Duration::from_secs(seconds());
    let heard = Arc::new(Watched::<Heard>::default());
    let (mut victim, peer) = (Victim::start(&heard), Victim::start(&heard));
    let config = Config::to(&[victim.addr, peer.addr]).workers(2).upstream(UPSTREAM).route(ROUTE);
    let sluice = Sluice::start(config.access_log("off"));
    let over = AtomicBool::new(false);
    let (asked, posted) = thread::scope(|scope| {
        let asking: Vec<_> = (0..ASKING).map(|_| scope.spawn(|| ask(&sluice, &over))).collect();
        let posting: Vec<_> = (0..POSTING)
            .map(|n| {
                scope.spawn({
                    let sluice = &sluice;
                    move || post(sluice, n, night)
                })
            })
            .collect();
        let begun = Instant::now();
        for fault in FAULTS.into_iter().cycle() {
            if begun.elapsed() + EVERY > night {
                break;
            }
            suffer(&sluice, &mut victim, fault);
        }
        let posted: Vec<_> = posting.into_iter().flat_map(|it| it.join().expect("posts")).collect();
        over.store(true, Ordering::SeqCst);
        let asked: Vec<_> = asking.into_iter().flat_map(|it| it.join().expect("gets")).collect();
        (asked, posted)
    });
    judge(&heard, asked, posted);
    let metrics = sluice.metrics();
    let (retries, held) =
        (metrics["sluice_retries_total"], metrics["sluice_upstream_cut_held_total"]);
    eprintln!("{retries} retries, {held} behind their head");
    assert!(retries > 0.0, "nobody suffered");
}

fn seconds() -> u64 {
    env::var("NIGHT_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// One fault from its beginning to its end, and the peace after it.
fn suffer(sluice: &Sluice, victim: &mut Victim, fault: &str) {
    // What is out already suffers nothing.
    eventually("the server to be in", || (!is_out(sluice, victim)).then_some(()));
    let (fault, amid) = match fault.strip_suffix(" amid bodies") {
        Some(fault) => (fault, true),
        None => (fault, false),
    };
    if amid {
        victim.be("slow body");
        wait(Instant::now(), FAULT / 4);
    }
    let begun = Instant::now();
    match fault {
        "kill" => {
            victim.kill();
            wait(begun, FAULT);
            victim.restart();
        }
        "stop" => {
            victim.signal(Signal::STOP);
            eventually("the stuck server to be out", || is_out(sluice, victim).then_some(()));
            let took = begun.elapsed();
            eprintln!("stuck server out after {took:?}");
            assert!(took <= OUT_WITHIN, "the stuck server was out after {took:?}");
            wait(begun, FAULT);
            victim.signal(Signal::CONT);
            victim.be("well");
        }
        mood => {
            victim.be(mood);
            wait(begun, FAULT);
            victim.be("well");
        }
    }
    wait(begun, EVERY);
}

/// Whether its health or its own breaker keeps it from getting requests.
fn is_out(sluice: &Sluice, victim: &Victim) -> bool {
    let address = victim.addr.to_string();
    let open = "sluice_breaker_state{upstream=\"app\",server=\"";
    let metrics = sluice.metrics();
    let is = |name: String, value: f64| {
        metrics.get(&name).is_some_and(|seen| (seen - value).abs() < 0.5)
    };
    is(format!("{open}{address}\",state=\"open\"}}"), 1.0)
        || is(format!("sluice_server_in{{upstream=\"app\",server=\"{address}\"}}"), 0.0)
}

/// Lets time pass: how long a fault lasts is what the test is about.
fn wait(since: Instant, span: Duration) {
    while since.elapsed() < span {
        moment();
    }
}

/// A browser: some requests, a moment, some more.
fn ask(sluice: &Sluice, over: &AtomicBool) -> Vec<Got> {
    let mut guest = Guest::new(sluice.addr());
    let mut got = Vec::new();
    while !over.load(Ordering::SeqCst) {
        got.extend((0..5).map(|_| guest.get("/page")));
        moment();
    }
    got
}

/// Orders, evenly over the night; the id of each, and its answer.
fn post(sluice: &Sluice, number: usize, night: Duration) -> Vec<(String, Got)> {
    let mut guest = Guest::new(sluice.addr());
    let begun = Instant::now();
    let mut answers = Vec::new();
    while answers.len() < POSTS / POSTING {
        let share = begun.elapsed().as_secs_f64() / night.as_secs_f64();
        let due = answers.len() as f64 <= share * (POSTS / POSTING) as f64;
        if due {
            let id = format!("{number}-{}", answers.len());
            let got = guest.post("/order", &id);
            answers.push((id, got));
        } else {
            moment();
        }
    }
    answers
}

fn judge(heard: &Watched<Heard>, asked: Vec<Got>, posted: Vec<(String, Got)>) {
    let (posts, halves) = heard.read(|heard| (heard.posts.clone(), heard.halves));
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for id in &posts {
        *times.entry(id).or_default() += 1;
    }
    let whole = |got: &Got| matches!(got, Got::Whole);
    let good = posted.iter().filter(|(_, got)| whole(got)).count();
    let failed: Vec<_> = asked.iter().filter(|got| !whole(got)).collect();
    eprintln!(
        "{} GETs: {} failed; {} POSTs: {good} good, {} arrived; {halves} responses broken off",
        asked.len(),
        failed.len(),
        posted.len(),
        times.len()
    );
    let doubled: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(doubled.is_empty(), "POSTs that arrived more than once: {doubled:?}");
    let lost = posted.iter().filter(|(id, got)| whole(got) && !times.contains_key(&**id)).count();
    assert_eq!(lost, 0, "POSTs that were answered and never arrived");
    assert_eq!(posted.len(), POSTS);
    assert!(good * 100 >= POSTS * 90, "only {good} POSTs were answered well");
    assert!(failed.is_empty(), "{} GETs of {} failed: {failed:?}", failed.len(), asked.len());
    assert!(halves > 0, "no server broke off");
}
