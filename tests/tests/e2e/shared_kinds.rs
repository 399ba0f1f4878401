//! Windows, places in progress and numbers of single keys over three gateways and one Redis.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use sluice_tests::redis::Redis;
use sluice_tests::{Config, Gate, Origin, Sluice, eventually};

use crate::shared::{Seen, count, load, load_of, three, wait_for_override};

fn store(redis: &Redis) -> String {
    format!("[store.redis]\nurl = \"redis://{}\"\nnodes = 3\n", redis.addr())
}

fn limited(redis: &Redis, origin: &Origin, limit: &str) -> String {
    let limit = format!("[limit.fair]\nkey = [\"header:x-key\"]\nstore = \"redis\"\n{limit}\n");
    let config = Config::to(&[origin.addr()]).more(&store(redis)).more(&limit);
    config.route("limits = [\"fair\"]").to_string()
}

/// The most that were certainly admitted within a window: begun after its beginning and ended
/// before its end.
fn most_within(seen: &[Seen], window: Duration) -> usize {
    let mut admitted: Vec<&Seen> = seen.iter().filter(|seen| seen.status == 200).collect();
    admitted.sort_by_key(|seen| seen.ended);
    let within = |first: &&Seen| {
        let inside = |seen: &&&Seen| seen.began >= first.began && seen.ended < first.began + window;
        admitted.iter().filter(inside).count()
    };
    admitted.iter().step_by(5).map(within).max().unwrap_or(0)
}

#[test]
fn a_sliding_window_over_three_gateways_never_admits_more_than_its_number() {
    let Some(redis) = Redis::start() else { return };
    let origin = Origin::ok("hello");
    let gateways = three(&limited(&redis, &origin, "kind = \"sliding\"\nrate = \"200/s\""));
    let seen = load(&gateways, Duration::from_secs(4));
    let (admitted, commands) = (count(&seen, 200..201), redis.calls("evalsha"));
    eprintln!("{} asked, {admitted} admitted, {commands} commands", seen.len());
    let most = most_within(&seen, Duration::from_secs(1));
    assert!(most <= 200, "{most} within a second");
    assert_eq!(admitted, origin.requests().len() as u64, "what was admitted has arrived");
    assert!((600..=1000).contains(&admitted), "of 200 in each of 4 s: {admitted}");
    assert_eq!(admitted + count(&seen, 429..430), seen.len() as u64, "nothing but 200 and 429");
}

#[test]
fn a_count_that_nobody_can_get_around_admits_exactly_its_number() {
    for (kind, rate, number) in
        [("sliding", "1/min", 1), ("sliding", "3/h", 3), ("quota", "7/day", 7)]
    {
        let Some(redis) = Redis::start() else { return };
        let origin = Origin::ok("hello");
        let limit = format!("kind = \"{kind}\"\nrate = \"{rate}\"");
        let gateways = three(&limited(&redis, &origin, &limit));
        let mut keys = ('a'..='z').map(String::from);
        // A token may come too late for who has waited 20 ms, on a busy machine: then another key
        // has to show that it is not always so.
        eventually("exactly its number", || {
            let (before, key) = (origin.requests().len(), keys.next().expect("few are enough"));
            let seen = load_of(&gateways, &key, Duration::from_millis(400));
            let admitted = count(&seen, 200..201);
            assert!(admitted <= number, "{kind} {rate}: {admitted}");
            assert_eq!((origin.requests().len() - before) as u64, admitted);
            (admitted == number).then_some(())
        });
    }
}

#[test]
fn no_more_are_in_progress_over_three_gateways_than_may_be() {
    let Some(redis) = Redis::start() else { return };
    let gate = Gate::new();
    let shut = gate.clone();
    let origin = Origin::new(move |connection| {
        loop {
            drop(connection.read_request()?);
            connection.wait_at(&shut)?;
            connection.write(sluice_tests::origin::ok("done"))?;
        }
    });
    let places = "concurrency = { max = 5, store = \"redis\", lost = \"closed\" }";
    let config = Config::to(&[origin.addr()]).more(&store(&redis)).route(places);
    let gateways = three(&config.to_string());
    let statuses: Vec<u16> = thread::scope(|scope| {
        let ask = |i: usize| {
            let mut client = gateways[i % 3].client();
            scope.spawn(move || client.get("/").status())
        };
        let mut all: Vec<_> = (0..12).map(ask).collect();
        // Who has waited for 20 ms in vain, on a busy machine, is refused while places are free.
        eventually("five at the origin", || {
            let refused = all.iter().filter(|asking| asking.is_finished()).count();
            let there = origin.heads();
            if there < 5 && refused + there == all.len() {
                all.push(ask(all.len()));
            }
            (there == 5).then_some(())
        });
        eventually("the others to be refused", || {
            let refused = all.iter().filter(|asking| asking.is_finished()).count();
            (refused + 5 == all.len()).then_some(())
        });
        gate.open();
        all.into_iter().map(|asking| asking.join().expect("a status")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5, "{statuses:?}");
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert_eq!(refused, statuses.len() - 5, "{statuses:?}");
    assert_eq!(origin.requests().len(), 5);
    let mut client = gateways[2].client();
    eventually("a place that is free again", || (client.get("/").status() == 200).then_some(()));
}

#[test]
fn numbers_of_one_key_hold_on_every_gateway_within_a_second() {
    let Some(redis) = Redis::start() else { return };
    let origin = Origin::ok("hello");
    let gateways = three(&limited(&redis, &origin, "rate = \"1/h\"\nburst = 1"));
    let ask =
        |i: usize, key: &str| gateways[i].client().ask("/", &format!("X-Key: {key}\r\n")).status();
    for key in ["a", "b"] {
        eventually("the one of this hour to be used up", || {
            (0..3).all(|i| ask(i, key) == 429).then_some(())
        });
    }
    let refused = post(&gateways[0], "limit=fair&key=a&rate=many");
    assert!(refused.starts_with("HTTP/1.1 422"), "{refused}");
    let set = post(&gateways[0], "limit=fair&key=a&rate=1000/s&burst=500");
    assert!(set.starts_with("HTTP/1.1 200"), "{set}");
    wait_for_override(&gateways, "fair/a", Some("1000/s 500"));
    eventually("what it allows", || (ask(1, "a") == 200).then_some(()));
    assert_eq!(ask(1, "b"), 429, "nobody else's");
    // By hand, as `redis-cli` would; and what nobody can read is told.
    drop(redis.ask(&["HSET", "sluice:{s000}:overrides", "fair/b", "1000/s", "nowhere/x", "1/s"]));
    wait_for_override(&gateways, "fair/b", Some("1000/s"));
    for i in 0..3 {
        eventually("it on every gateway", || (ask(i, "b") == 200).then_some(()));
    }
    eventually("what nobody can read in the list", || {
        let limits = gateways[1].admin("/v1/limits").json().to_string();
        limits.contains("no limit with a store is called").then_some(())
    });
    let metrics = gateways[1].metrics();
    assert!(metrics["sluice_store_overrides"] >= 2.0);
    assert!(metrics["sluice_limit_store_messages_total{limit=\"fair\"}"] >= 1.0);
    assert!(post(&gateways[2], "limit=fair&key=a").starts_with("HTTP/1.1 200"));
    wait_for_override(&gateways, "fair/a", None);
    eventually("the limit's own again", || (ask(0, "a") == 429).then_some(()));
}

/// By the control socket, which asks for no token.
fn post(sluice: &Sluice, wish: &str) -> String {
    let mut stream = UnixStream::connect(sluice.dir().join("control.sock")).expect("the socket");
    let head = format!(
        "POST /v1/limits/override?{wish} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("a question");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
