//! Limits that depend on what else comes, and the node's own pressure, through the binary.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use sluice_tests::shell::{MOUNTING, after, can_mount};
use sluice_tests::wait::moment;
use sluice_tests::{Config, Origin, Signal, Sluice, eventually};

#[test]
fn a_route_gives_way_while_another_is_busy() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .workers(2)
        .more("[route.pay]\nmatch = \"/pay\"\nto = \"app\"\nlimits = []\n")
        .more(
            "[limit.reports]\nkey = [\"route\"]\nrate = \"1/h\"\n\
             while = { route = \"pay\", above = \"20/min\" }\n",
        )
        .route("limits = [\"reports\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    assert!((0..5).all(|_| client.get("/a").status() == 200), "nobody pays");
    assert!((0..21).all(|_| sluice.client().get("/pay").status() == 200));
    let statuses = [(); 3].map(|()| client.get("/a").status());
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(client.get("/pay").status(), 200);
    let bound = sluice.admin("/v1/limits").json()["limits"][0]["bound"].to_string();
    assert!(bound.contains("while more than 20/min come to route pay"), "{bound}");
}

#[test]
fn only_the_heaviest_keys_are_limited_and_operators_see_which() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .workers(2)
        .more("[limit.hot]\nkey = [\"api_key\", \"path\"]\nrate = \"1/h\"\nheaviest = 1\n")
        .route("limits = [\"hot\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let key = "X-Api-Key: k-1234\r\n";
    eventually("the hot key is refused", || {
        (client.ask("/hot", key).status() == 429).then_some(())
    });
    // And stays the heaviest by far while it is looked at.
    for _ in 0..200 {
        let _ = client.ask("/hot", key);
    }
    for n in 0..3 {
        let path = format!("/cold-{n}");
        let statuses = [(); 2].map(|()| sluice.client().ask(&path, key).status());
        assert_eq!(statuses, [200, 200], "{path}");
    }
    let top = sluice.admin("/v1/limits/top");
    let shown = &top.json()["limits"][0];
    assert_eq!((&shown["name"], shown["top"].as_array().map(Vec::len)), (&"hot".into(), Some(1)));
    let written = shown["top"][0]["key"].as_str().unwrap_or_default();
    assert!(written.starts_with("x-api-key=#") && written.ends_with(" path=/hot"), "{shown}");
    assert!(shown["top"][0]["recent"].as_u64() > Some(0), "{shown}");
    assert!(!top.text().contains("k-1234"), "a secret");
}

/// What is shed, and what is critical and not.
fn config(origin: &Origin, shed: &str) -> Config {
    let critical = "[route.vital]\nmatch = \"/vital\"\nto = \"app\"\npriority = \"critical\"\n";
    Config::to(&[origin.addr()]).more(&format!("[shed]\n{shed}\n")).more(critical)
}

fn guarded(origin: &Origin, shed: &str) -> Sluice {
    Sluice::start(config(origin, shed))
}

fn refused(sluice: &Sluice, code: &str) -> bool {
    let response = sluice.client().get("/a");
    let shed = response.status() == 503;
    if shed {
        assert_eq!(response.json()["code"], code);
        assert_eq!(response.field("retry-after"), Some("1"));
    }
    shed
}

#[test]
fn a_node_whose_loop_is_late_sheds_until_it_is_not() {
    let origin = Origin::ok("hello");
    let sluice = guarded(&origin, "lag = \"20ms\"");
    assert!((0..20).all(|_| !refused(&sluice, "shed.lag")), "one late tick sheds nobody");
    eventually("what is normal is shed", || {
        // It comes round once in about 50 ms, and asks for 17.
        sluice.signal(Signal::STOP);
        moment();
        sluice.signal(Signal::CONT);
        refused(&sluice, "shed.lag").then_some(())
    });
    assert_eq!(sluice.client().get("/vital").status(), 200);
    assert!(sluice.metrics()["sluice_shed_total{reason=\"lag\",class=\"normal\"}"] >= 1.0);
    eventually("all is served again", || {
        (0..20).all(|_| !refused(&sluice, "shed.lag")).then_some(())
    });
}

#[test]
fn a_machine_whose_processors_are_at_their_bound_sheds() {
    let origin = Origin::ok("hello");
    // Whoever asks without a pause makes the machine that busy.
    let sluice = guarded(&origin, "lag = \"off\"\ncpu = \"0.1%\"");
    eventually("what is normal is shed", || {
        (0..100).any(|_| refused(&sluice, "shed.cpu")).then_some(())
    });
    assert_eq!(sluice.client().get("/vital").status(), 200);
    assert!(sluice.metrics()["sluice_pressure_ratio{signal=\"cpu\"}"] >= 0.9);
}

#[test]
fn a_machine_with_more_to_run_than_its_bound_sheds_until_it_has_less() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let told = folder.path().join("loadavg");
    // What the kernel would say of another machine. In place: the mount is of this very file.
    let is = |load: &str| fs::write(&told, format!("{load} 0.50 0.50 1/100 1\n")).expect("a file");
    is("89.99");
    let origin = Origin::ok("hello");
    let mount = format!("mount --bind {} /proc/loadavg", told.display());
    let bounded = config(&origin, "lag = \"off\"\nload = 100");
    let sluice = Sluice::start_arranged(bounded, |command| after(&mount, &MOUNTING, command));
    let ratio = "sluice_pressure_ratio{signal=\"load\"}";
    eventually("the load to be known", || (sluice.metrics()[ratio] > 0.8).then_some(()));
    assert!((0..50).all(|_| !refused(&sluice, "shed.load")), "below nine tenths nothing normal is");
    is("95.00");
    eventually("what is normal is shed", || {
        (0..20).all(|_| refused(&sluice, "shed.load")).then_some(())
    });
    let vital = sluice.client().get("/vital");
    assert_eq!((vital.status(), vital.text().as_str()), (200, "hello"));
    let metrics = sluice.metrics();
    assert!(metrics["sluice_shed_total{reason=\"load\",class=\"normal\"}"] >= 20.0);
    assert_eq!(metrics["sluice_shed_total{reason=\"load\",class=\"critical\"}"], 0.0);
    is("0.10");
    eventually("all is served again", || {
        (0..20).all(|_| !refused(&sluice, "shed.load")).then_some(())
    });
}

#[test]
fn a_bound_may_come_later_and_a_worker_that_looks_for_what_comes_next_is_not_busy() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let told = folder.path().join("stat");
    let file = File::create(&told).expect("a file");
    let began = Instant::now();
    // Another machine, never idle, and so slow that it spends ten ticks a second.
    let goes_on = || {
        let busy = 10_000 + began.elapsed().as_millis() / 100;
        file.write_all_at(format!("cpu  {busy} 0 0 1000 0 0 0 0 0 0\n").as_bytes(), 0)
            .expect("told");
    };
    goes_on();
    let origin = Origin::ok("hello");
    let with = |shed: &str, server: &str| config(&origin, shed).server(server);
    let mount = format!("mount --bind {} /proc/stat", told.display());
    let free = with("lag = \"off\"", "");
    let sluice = Sluice::start_arranged(free, |command| after(&mount, &MOUNTING, command));
    assert!((0..20).all(|_| !refused(&sluice, "")), "nothing is bounded");
    let bounded = "lag = \"off\"\ncpu = \"50%\"";
    assert_eq!(sluice.reload(with(bounded, "busy_poll = \"0s\"")).code, Some(0));
    eventually("what is normal is shed", || {
        goes_on();
        (0..20).all(|_| refused(&sluice, "shed.cpu")).then_some(())
    });
    // It looks for many times as long as the machine is busy.
    assert_eq!(sluice.reload(with(bounded, "busy_poll = \"10ms\"")).code, Some(0));
    eventually("all is served again", || {
        goes_on();
        (0..20).all(|_| !refused(&sluice, "shed.cpu")).then_some(())
    });
}
