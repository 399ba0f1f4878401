//! Three gateways that count together, while what they count in fails, moves or is locked. Short
//! runs with generous bounds; `trouble.rs` has the long ones with figures.

#[path = "fleet/trouble.rs"]
mod trouble;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::load::{count, excess};
use sluice_tests::{Authority, Cluster, Load, Redis, Sentinel, Sluice, eventually};

const RATE: u32 = 300;
const SHORT: Load = Load { rate: 900, span: Duration::from_secs(5), keys: 1 };

/// A gateway that answers by itself and limits by a field, with these lines for the store.
fn config(store: &str, rate: u32, lost: &str) -> String {
    format!(
        "version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log.access]\nto = \"off\"\n\
         [store.redis]\nnodes = 3\n{store}\n\
         [limit.fair]\nkey = [\"header:x-key\"]\nrate = \"{rate}/s\"\nburst = {rate}\n\
         store = \"redis\"\nlost = \"{lost}\"\n\
         [route.all]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\nlimits = [\"fair\"]\n"
    )
}

fn alone(redis: &Redis) -> String {
    format!("url = \"redis://{}\"", redis.addr())
}

fn watched(sentinel: &Sentinel) -> String {
    format!("sentinels = [\"{}\"]\nmaster = \"main\"", sentinel.addr())
}

fn clustered(cluster: &Cluster) -> String {
    format!("cluster = [{}]", cluster.addrs())
}

fn three(config: &str) -> Vec<Sluice> {
    let all: Vec<_> = (0..3).map(|_| Sluice::start(config)).collect();
    all.iter().for_each(|sluice| wait_for_store(sluice, "up"));
    all
}

fn state(sluice: &Sluice) -> String {
    sluice.admin("/health/ready").json()["store"].as_str().unwrap_or_default().to_owned()
}

fn wait_for_store(sluice: &Sluice, wanted: &str) {
    eventually("the store's state", || (state(sluice) == wanted).then_some(()));
}

#[test]
fn a_primary_that_dies_is_failed_over_and_its_replica_counts_on() {
    let Some(mut primary) = Redis::start() else { return };
    let replica = primary.replica();
    let sentinel = Sentinel::over(&primary);
    let gateways = three(&config(&watched(&sentinel), RATE, "closed"));
    let seen = thread::scope(|scope| {
        let load = scope.spawn(|| SHORT.run(&gateways));
        eventually("some load", || (primary.calls("evalsha") > 5).then_some(()));
        primary.kill();
        eventually("a fail-over", || (sentinel.primary() == replica.addr().port()).then_some(()));
        let told = Instant::now();
        gateways.iter().for_each(|sluice| wait_for_store(sluice, "up"));
        assert!(told.elapsed() < Duration::from_secs(2), "{:?}", told.elapsed());
        eventually("load on the other", || (replica.calls("evalsha") > 5).then_some(()));
        load.join().expect("the load")
    });
    assert_eq!(count(&seen, 500..600), 0);
    assert!(excess(&seen, f64::from(RATE), f64::from(RATE)) <= 0.0);
}

#[test]
fn slots_that_move_between_primaries_cost_nobody_an_error() {
    let Some(cluster) = Cluster::start() else { return };
    // Enough for what comes at once from a machine that has no time for a while.
    let gateways = three(&config(&clustered(&cluster), 10 * RATE, "closed"));
    let load = Load { keys: 24, rate: 600, ..SHORT };
    let seen = thread::scope(|scope| {
        let load = scope.spawn(|| load.run(&gateways));
        let busy = |node: &Redis| node.calls("evalsha") > 5;
        eventually("load on all", || cluster.nodes.iter().all(busy).then_some(()));
        cluster.reshard(0, 1);
        load.join().expect("the load")
    });
    assert_eq!(count(&seen, 500..600), 0);
    let (admitted, asked) = (count(&seen, 200..201), seen.len() as u64);
    // Who has waited 20 ms, on a busy machine, is refused.
    let late = gateways.iter().map(gave_up).sum::<f64>();
    let counted = admitted as f64 + late;
    assert!(counted > 0.9 * asked as f64, "{admitted} of {asked}: nobody is over the limit");
    assert_eq!(cluster.nodes[0].ask(&["DBSIZE"]).trim(), ":0");
    gateways.iter().for_each(|sluice| wait_for_store(sluice, "up"));
    let mut client = gateways[0].client();
    for key in 0..24 {
        eventually("a key that is counted where it went", || {
            (client.ask("/", &format!("X-Key: {key}\r\n")).status() == 200).then_some(())
        });
    }
}

#[test]
fn strict_counts_go_along_with_slots_that_move_and_not_with_what_is_lost() {
    let Some(mut cluster) = Cluster::start() else { return };
    let limit = format!("rate = \"{RATE}/s\"\nburst = {RATE}\n");
    let strict = "kind = \"sliding\"\nrate = \"3000/h\"\nstrict = true\n";
    let gateways = three(&config(&clustered(&cluster), RATE, "closed").replace(&limit, strict));
    let ask = |key: u32| {
        let mut client = gateways[key as usize % 3].client();
        client.ask("/", &format!("X-Key: {key}\r\n")).status() == 200
    };
    let counted = |key: u32| eventually("a key that is counted", || ask(key).then_some(()));
    (0..24).for_each(counted);
    let fences = |cluster: &Cluster| -> Vec<String> {
        let fence = |shard| cluster.get(&format!("sluice:{{s{shard:03}}}"), "fence");
        (0..64).map(fence).collect()
    };
    let before = fences(&cluster);
    let seen = thread::scope(|scope| {
        let load = scope.spawn(|| Load { keys: 24, rate: 600, ..SHORT }.run(&gateways));
        cluster.reshard(0, 1);
        load.join().expect("the load")
    });
    assert_eq!(count(&seen, 500..600), 0);
    // Those that moved, in the old and in the new, and keys that nobody has asked for yet.
    (0..48).for_each(counted);
    assert_eq!(fences(&cluster), before, "nothing was lost");
    let theirs = cluster.nodes[1].count("sluice:*fair:*");
    assert!((1..48).contains(&theirs), "{theirs} of 48 keys lie there");
    cluster.nodes[1].kill();
    for (key, sluice) in (0..).zip(&gateways) {
        eventually("the loss to be noticed", || {
            let _ = (0..16).filter(|n| ask(3 * n + key)).count();
            (state(sluice) == "lost").then_some(())
        });
    }
    cluster.nodes[1].restart();
    gateways.iter().for_each(|sluice| wait_for_store(sluice, "up"));
    let mut admitted = BTreeSet::new();
    eventually("each of the others to be counted", || {
        admitted.extend((0..48).filter(|key| ask(*key)));
        assert!(admitted.len() <= 48 - theirs, "{theirs} are full for an hour: {admitted:?}");
        (admitted.len() == 48 - theirs).then_some(())
    });
}

/// Requests that waited for the store in vain.
fn gave_up(sluice: &Sluice) -> f64 {
    sluice.metrics()["sluice_store_degraded_decisions_total{decision=\"refused\"}"]
}

#[test]
fn a_primary_of_a_cluster_that_dies_takes_only_its_own_keys_along() {
    let Some(mut cluster) = Cluster::start() else { return };
    let gateways = three(&config(&clustered(&cluster), RATE, "closed"));
    let mut client = gateways[0].client();
    let mut admitted = || -> BTreeSet<u32> {
        let mut ask = |key: &u32| client.ask("/", &format!("X-Key: {key}\r\n")).status() == 200;
        (0..60).filter(|key| ask(key)).collect()
    };
    // Who waits for 20 ms in vain is refused, so on a busy machine it takes a few rounds.
    let all: BTreeSet<u32> = (0..60).collect();
    let mut seen = BTreeSet::new();
    eventually("each to be counted", || {
        seen.append(&mut admitted());
        (seen == all).then_some(())
    });
    let theirs = cluster.nodes[2].count("sluice:*fair:*");
    assert!((1..60).contains(&theirs), "{theirs} of 60 keys lie there");
    cluster.nodes[2].kill();
    eventually("the loss to be noticed", || (state(&gateways[0]) == "lost").then_some(()));
    // What is in hand of the lost ones is good for a lease.
    eventually("leases that end", || (admitted().len() <= 60 - theirs).then_some(()));
    seen.clear();
    eventually("each of the others to be counted", || {
        seen.append(&mut admitted());
        assert!(seen.len() <= 60 - theirs, "{theirs} have nobody to count them: {seen:?}");
        (seen.len() == 60 - theirs).then_some(())
    });
    cluster.nodes[2].restart();
    eventually("each to be counted again", || {
        seen.append(&mut admitted());
        (seen == all).then_some(())
    });
    wait_for_store(&gateways[0], "up");
}

#[test]
fn tls_and_a_password_are_spoken_and_verified() {
    let Some(ours) = Authority::new() else { return };
    let Some(theirs) = Authority::new() else { return };
    let login = ["--user", "sluice", "on", ">hunter2", "~sluice:*", "+@all"];
    let Some((_redis, port)) = ours.redis(&login) else { return };
    let start = |ca: &Authority, password: &str| {
        let store = format!(
            "url = \"rediss://127.0.0.1:{port}\"\nca = \"{}\"\nuser = \"sluice\"\n\
             password = \"env:REDIS_PASSWORD\"",
            ca.file("ca.pem").display()
        );
        let config = config(&store, RATE, "closed");
        Sluice::start_arranged(config, |command| {
            command.env("REDIS_PASSWORD", password);
        })
    };
    let good = start(&ours, "hunter2");
    wait_for_store(&good, "up");
    eventually("a request that is counted", || {
        (good.client().ask("/", "X-Key: a\r\n").status() == 200).then_some(())
    });
    for (ca, password, why) in [
        (&theirs, "hunter2", "invalid peer certificate"),
        (&ours, "hunter3", "authentication failed"),
    ] {
        let bad = start(ca, password);
        wait_for_store(&bad, "lost");
        // On a busy machine it may also be too late for a try or two.
        let told = eventually(why, || {
            let told = bad.admin("/v1/status").json()["store"]["why"].to_string();
            told.contains(why).then_some(told)
        });
        assert!(!(bad.stderr() + &told).contains("hunter"), "{}", bad.stderr());
    }
}

#[test]
fn sentinels_behind_tls_and_passwords_lead_from_one_primary_to_the_next() {
    let Some(ours) = Authority::new() else { return };
    let Some(theirs) = Authority::new() else { return };
    let login = ["--user", "sluice", "on", ">hunter2", "~*", "&*", "+@all"];
    // Who logs in without a name may look, and nothing else.
    let shut = ["--user", "default", "on", "nopass", "-@all", "+ping", "+info", "+select", "+hset"];
    let rights =
        [&shut[..], &["+eval", "~sluice:*"], &login, &["--tls-replication", "yes"]].concat();
    let Some((mut primary, port)) = ours.redis(&rights) else { return };
    primary.warm();
    let from = port.to_string();
    let follow = ["--replicaof", "127.0.0.1", &from, "--masteruser", "sluice"];
    let rights = [&rights[..], &follow, &["--masterauth", "hunter2"]].concat();
    let Some((replica, next)) = ours.redis(&rights) else { return };
    let in_step = || (replica.info("replication", "master_link_status") == "up").then_some(());
    eventually("a replica in step", in_step);
    let (sentinel, watcher) = ours.sentinel(port, "watchword", ["sluice", "hunter2"]);
    let start = |ca: &Authority, word: &str| {
        let store = format!(
            "sentinels = [\"127.0.0.1:{watcher}\"]\nmaster = \"main\"\ntls = true\n\
             ca = \"{}\"\nuser = \"sluice\"\npassword = \"env:REDIS_PASSWORD\"\n\
             sentinel_password = \"env:SENTINEL_PASSWORD\"",
            ca.file("ca.pem").display()
        );
        Sluice::start_arranged(config(&store, RATE, "closed"), |command| {
            command.env("REDIS_PASSWORD", "hunter2").env("SENTINEL_PASSWORD", word);
        })
    };
    let good = start(&ours, "watchword");
    wait_for_store(&good, "up");
    let counted = |what: &str| {
        eventually(what, || (good.client().ask("/", "X-Key: a\r\n").status() == 200).then_some(()));
    };
    counted("a request that the primary counts");
    for (ca, word, why) in [
        (&theirs, "watchword", "invalid peer certificate"),
        (&ours, "catchword", "authentication failed"),
    ] {
        let bad = start(ca, word);
        wait_for_store(&bad, "lost");
        let told = eventually(why, || {
            let told = bad.admin("/v1/status").json()["store"]["why"].to_string();
            told.contains(why).then_some(told)
        });
        assert!(!(bad.stderr() + &told).contains("word\""), "{told}");
    }
    primary.kill();
    eventually("a fail-over", || (sentinel.primary() == next).then_some(()));
    let server = || good.admin("/v1/status").json()["store"]["servers"][0].to_string();
    eventually("the other primary", || server().contains(&next.to_string()).then_some(()));
    wait_for_store(&good, "up");
    counted("a request that the other counts");
}

#[test]
fn a_certificate_is_shown_where_one_is_wanted() {
    let Some(ours) = Authority::new() else { return };
    let Some((_redis, port)) = ours.redis(&["--tls-auth-clients", "yes"]) else { return };
    let file = |name: &str| ours.file(name).display().to_string();
    let ca = format!("url = \"rediss://127.0.0.1:{port}\"\nca = \"{}\"", file("ca.pem"));
    let shown = format!(
        "{ca}\ncertificate = \"{}\"\ncertificate_key = \"{}\"",
        file("server.pem"),
        file("server.key")
    );
    let good = Sluice::start(config(&shown, RATE, "closed"));
    wait_for_store(&good, "up");
    let bad = Sluice::start(config(&ca, RATE, "closed"));
    wait_for_store(&bad, "lost");
    let doctor = |store: &str| {
        let path = ours.file("sluice.toml");
        std::fs::write(&path, config(store, RATE, "closed")).expect("write");
        let said = Sluice::command(&["doctor", "-c", &path.to_string_lossy()]);
        let found: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
        found.as_array().and_then(|all| all.last()).expect("the store's").to_string()
    };
    assert!(doctor(&shown).contains("a primary"), "{}", doctor(&shown));
    assert!(doctor(&ca).contains("`certificate`"), "{}", doctor(&ca));
    let plain = format!("url = \"redis://127.0.0.1:{port}\"");
    assert!(doctor(&plain).contains("`rediss://`"), "{}", doctor(&plain));
}
