//! What operators do with shared counts: numbers of single keys by the command line, shadows, and a
//! look at the Redis of a configuration.

use std::time::Duration;

use sluice_tests::redis::Redis;
use sluice_tests::{Sluice, eventually};
use tempfile::TempDir;

use crate::shared::{three, wait_for_override};

fn limited(redis: &Redis, limit: &str) -> String {
    format!(
        "version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log.access]\nto = \"off\"\n\
         [store.redis]\nurl = \"redis://{}\"\nnodes = 3\n\
         [limit.fair]\nkey = [\"header:x-key\"]\nstore = \"redis\"\n{limit}\n\
         [route.all]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\nlimits = [\"fair\"]\n",
        redis.addr()
    )
}

fn ask(sluice: &Sluice, key: &str) -> u16 {
    sluice.client().ask("/", &format!("X-Key: {key}\r\n")).status()
}

/// `sluice limits …` against this process: its exit code, and all that it said.
fn limits(sluice: &Sluice, args: &[&str]) -> (Option<i32>, String) {
    let control = sluice.dir().join("control.sock").to_string_lossy().into_owned();
    let args: Vec<&str> = ["limits"].iter().chain(args).copied().collect();
    let said = Sluice::command(&[&args[..], &["--control", &control]].concat());
    (said.code, (said.stdout + &said.stderr).trim().to_owned())
}

#[test]
fn the_command_line_sets_lists_and_takes_away_numbers_of_one_key() {
    let Some(redis) = Redis::start() else { return };
    let gateways = three(&limited(&redis, "rate = \"1/h\"\nburst = 1"));
    eventually("the one of this hour to be used up", || {
        gateways.iter().all(|sluice| ask(sluice, "a b") == 429).then_some(())
    });
    let (code, said) = limits(&gateways[0], &["override", "fair", "a b", "many"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("`many` is no rate"), "{said}");
    let wish = ["override", "fair", "a b", "1000/s", "--burst", "500"];
    let (code, said) = limits(&gateways[0], &wish);
    assert_eq!((code, said.as_str()), (Some(0), "fair/a b: 1000/s, 500 at once"));
    let mut took = vec![wait_for_override(&gateways, "fair/a b", Some("1000/s 500"))];
    for sluice in &gateways {
        eventually("what it allows", || (ask(sluice, "a b") == 200).then_some(()));
    }
    let (code, said) = limits(&gateways[2], &["overrides"]);
    let listed: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, listed[0]["value"].as_str()), (Some(0), Some("1000/s 500")), "{said}");
    let (code, said) = limits(&gateways[1], &["list"]);
    assert!(code == Some(0) && said.contains("\"bound\""), "{said}");
    let (code, said) = limits(&gateways[1], &["restore", "fair", "a b"]);
    assert_eq!((code, said.as_str()), (Some(0), "fair/a b: the limit's own numbers"));
    took.push(wait_for_override(&gateways, "fair/a b", None));
    for sluice in &gateways {
        eventually("the limit's own", || (ask(sluice, "a b") == 429).then_some(()));
    }
    // What holds whenever the machine has time for it holds once in a few times.
    for _ in 0..2 {
        assert_eq!(limits(&gateways[0], &wish).0, Some(0));
        took.push(wait_for_override(&gateways, "fair/a b", Some("1000/s 500")));
        assert_eq!(limits(&gateways[0], &["restore", "fair", "a b"]).0, Some(0));
        took.push(wait_for_override(&gateways, "fair/a b", None));
    }
    eprintln!("{took:.0?}");
    assert!(took.iter().min() < Some(&Duration::from_secs(1)), "{took:?}");
}

#[test]
fn numbers_of_one_key_last_as_long_as_what_redis_keeps() {
    let kept = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start_with(&kept) else { return };
    redis.warm();
    let gateways = three(&limited(&redis, "rate = \"1/h\"\nburst = 1"));
    let own = |sluice: &Sluice| {
        let limits = sluice.admin("/v1/limits").json();
        limits["overrides"][0]["key"] == "fair/a"
    };
    let (code, said) = limits(&gateways[0], &["override", "fair", "a", "1000/s"]);
    assert_eq!(code, Some(0), "{said}");
    eventually("it on every gateway", || gateways.iter().all(own).then_some(()));
    redis.kill();
    for sluice in &gateways {
        eventually("the loss", || {
            (sluice.admin("/health/ready").json()["store"] == "lost").then_some(())
        });
        assert!(own(sluice), "the last ones stay in force");
    }
    let (code, said) = limits(&gateways[0], &["restore", "fair", "a"]);
    assert_eq!(code, Some(1), "nothing can be changed while it is away: {said}");
    redis.restart();
    for sluice in &gateways {
        eventually("its return", || {
            (sluice.admin("/health/ready").json()["store"] == "up").then_some(())
        });
        eventually("the key's own rate", || (ask(sluice, "a") == 200).then_some(()));
        assert!(own(sluice));
    }
    drop(redis.ask(&["FLUSHALL"]));
    eventually("nobody's", || (!gateways.iter().any(own)).then_some(()));
}

#[test]
fn a_shadow_over_redis_counts_and_refuses_nobody() {
    let Some(redis) = Redis::start() else { return };
    let gateways = three(&limited(&redis, "rate = \"5/h\"\nburst = 5\nshadow = true"));
    let decided = |sluice: &Sluice, decision: &str| {
        let name =
            format!("sluice_limit_decisions_total{{limit=\"fair\",decision=\"{decision}\"}}");
        sluice.metrics()[name.as_str()]
    };
    let mut asked = 0.0;
    for sluice in &gateways {
        // What comes before the answer passes, and is owed.
        eventually("a refusal that is only counted", || {
            assert_eq!(ask(sluice, "a"), 200);
            asked += 1.0;
            (decided(sluice, "shadow_refused") >= 1.0).then_some(())
        });
    }
    let sum = |decision: &str| gateways.iter().map(|sluice| decided(sluice, decision)).sum::<f64>();
    // A decision is counted when its response has gone.
    let all = |asked: f64| {
        eventually("all to be counted", || {
            let (allowed, refused) = (sum("allowed"), sum("shadow_refused"));
            (allowed + refused >= asked).then_some((allowed, refused))
        })
    };
    let (passed, refused) = all(asked);
    assert!(passed >= 5.0, "{passed}");
    for sluice in gateways.iter().cycle().take(9) {
        assert_eq!(ask(sluice, "a"), 200);
    }
    assert_eq!(all(asked + 9.0), (passed, refused + 9.0), "nine more refusals, and nothing passes");
    let parked = gateways.iter().map(|sluice| sluice.metrics()["sluice_store_parked_total"]);
    assert!(parked.sum::<f64>() <= 0.0, "nobody waits for a shadow");
}

#[test]
fn the_doctor_says_what_is_wrong_with_a_redis() {
    let Some(open) = Redis::start() else { return };
    let Some(locked) = Redis::start_with(&["--requirepass", "hunter2"]) else { return };
    let bus = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let port = bus.expect("a port").port().to_string();
    let lonely = ["--cluster-enabled", "yes", "--cluster-port", &port];
    let Some(lonely) = Redis::start_with(&lonely) else { return };
    let dir = TempDir::new().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "hunter3").unwrap();
    let wrong = format!("password = \"file:{}\"", password.display());
    let at = |redis: &Redis| format!("url = \"redis://{}\"", redis.addr());
    // (what is written, what is said of it, what should be)
    let table = [
        (at(&open), "a primary", None),
        (at(&locked), "NOAUTH", Some("`password`")),
        (format!("{}\n{wrong}", at(&locked)), "authentication failed", Some("`password`")),
        ("url = \"redis://127.0.0.1:1\"".to_owned(), "refused", Some("where a Redis listens")),
        ("url = \"redis://nowhere.invalid\"".to_owned(), "lookup", Some("has an address")),
        (format!("url = \"rediss://{}\"", open.addr()), "", Some("speaks TLS")),
        (format!("cluster = [\"{}\"]", lonely.addr()), "no part of a cluster", Some(":ok")),
        (format!("cluster = [\"{}\"]", open.addr()), "", Some("")),
        (format!("sentinels = [\"{}\"]\nmaster = \"m\"", open.addr()), "", Some("")),
    ];
    for (store, is, should) in table {
        let file = dir.path().join("sluice.toml");
        let config =
            format!("version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\n[store.redis]\n{store}\n");
        std::fs::write(&file, config).unwrap();
        // On a busy machine an answer may come too late for a try.
        eventually(&format!("{store}: {is:?} {should:?}"), || {
            let said = Sluice::command(&["doctor", "--config", &file.to_string_lossy()]);
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            assert!(!said.stdout.contains("hunter"), "{}", said.stdout);
            let found: Vec<serde_json::Value> = serde_json::from_str(&said.stdout).ok()?;
            let told = |key: &str| found.last()?[key].as_str().map(str::to_owned);
            let advised = match (told("should"), should) {
                (Some(told), Some(should)) => told.contains(should),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            (told("is")?.contains(is) && advised).then_some(())
        });
    }
}
