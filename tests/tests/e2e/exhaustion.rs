//! Descriptors, places, memory and disk run out: nothing ends, nothing spins, and what was let in is
//! served.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::shell::{MOUNTING, after, can_mount};
use sluice_tests::wait::{Watched, moment};
use sluice_tests::{Client, Config, Gate, Origin, Sluice, eventually};

/// Once there is room again.
const RECOVERED_WITHIN: Duration = Duration::from_secs(1);

/// What a gateway that has nothing to do may take of a core. It measured below 2 % in a debug
/// build; a loop without a pause takes all of it.
const QUIET: f64 = 0.25;

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";

fn cpu(sluice: &Sluice) -> f64 {
    sluice.metrics()["process_cpu_seconds_total"]
}

/// Holds that the gateway rests, as it stands.
#[track_caller]
fn is_quiet(sluice: &Sluice) {
    let (begun, before) = (Instant::now(), cpu(sluice));
    for _ in 0..10 {
        moment();
    }
    let share = (cpu(sluice) - before) / begun.elapsed().as_secs_f64();
    assert!(share < QUIET, "{share:.2} of a core, and nothing to do");
}

/// So many clients at once, each with a request. Those that were let in are all served; how many
/// they are.
fn crowd(sluice: &Sluice, origin: &Origin, gate: &Gate, clients: usize, places: usize) -> usize {
    let mut crowd: Vec<Client> = (0..clients).map(|_| sluice.client()).collect();
    for client in &mut crowd {
        client.try_send(GET);
    }
    // All of them need a connection to the origin at the same time.
    origin.wait_for_heads(places);
    is_quiet(sluice);
    gate.open();
    let answers = crowd.iter_mut().filter_map(Client::try_read_response);
    let statuses: Vec<u16> = answers.map(|answer| answer.status()).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    statuses.len()
}

/// Client connections at the most, as the metric and the status say alike.
#[track_caller]
fn places(sluice: &Sluice) -> usize {
    let told = sluice.admin("/v1/status").json()["connections_max"].as_u64().expect("a number");
    sluice.wait_for_metric("sluice_connections_max", told as f64);
    usize::try_from(told).expect("few")
}

#[track_caller]
fn recovers(sluice: &Sluice) {
    let left = Instant::now();
    eventually("an answer", || {
        let mut client = Client::try_connect(sluice.addr()).ok()?;
        client.try_send(GET);
        client.try_read_response().filter(|answer| answer.status() == 200)
    });
    assert!(left.elapsed() <= RECOVERED_WITHIN, "it took {:?}", left.elapsed());
}

#[test]
fn clients_leave_descriptors_for_their_upstreams() {
    let gate = Gate::new();
    let origin = Origin::behind(&gate, "served");
    let config = Config::to(&[origin.addr()]).access_log("off");
    let sluice = Sluice::start_arranged(config, |command| {
        after("ulimit -n 128", &["sh", "-c"], command);
    });
    sluice.wait_for_stderr("connections_bounded");
    let places = places(&sluice);
    assert!((30..=64).contains(&places), "{places} places of 128 descriptors");
    let served = crowd(&sluice, &origin, &gate, 1_000, places);
    assert!(served >= places, "{served} of {places}");
    let metrics = sluice.metrics();
    assert!(metrics["sluice_connections_refused_total"] >= 900.0, "{metrics:?}");
    assert_eq!(metrics["sluice_accept_errors_total"], 0.0);
    assert_eq!(metrics["sluice_upstream_connects_failed_total"], 0.0);
    recovers(&sluice);
}

#[test]
fn idle_connections_to_one_server_leave_room_for_another() {
    let (first, second) = (Gate::new(), Gate::new());
    let (idle, wanted) = (Origin::behind(&first, "served"), Origin::behind(&second, "served"));
    let config = Config::to(&[idle.addr()]).access_log("off").more(&format!(
        "[upstream.other]\nservers = [\"{}\"]\n[route.other]\nmatch = \"/other\"\nto = \"other\"",
        wanted.addr()
    ));
    let sluice = Sluice::start_arranged(config, |command| {
        after("ulimit -n 128", &["sh", "-c"], command);
    });
    let places = places(&sluice);
    let mut crowd: Vec<Client> = (0..places).map(|_| sluice.client()).collect();
    for (target, origin, gate) in [("/a", &idle, &first), ("/other", &wanted, &second)] {
        for client in &mut crowd {
            client.send(GET.replace("/a", target));
        }
        origin.wait_for_heads(places);
        gate.open();
        assert!(crowd.iter_mut().all(|client| client.read_response().status() == 200), "{target}");
    }
}

#[test]
fn a_burst_beyond_the_bound_on_connections_is_refused_and_over_when_it_is_over() {
    let gate = Gate::new();
    let origin = Origin::behind(&gate, "served");
    let config = Config::to(&[origin.addr()])
        .server("connections = 60")
        .upstream("connections = 60")
        .access_log("off");
    let sluice = Sluice::start(config);
    assert_eq!(places(&sluice), 60);
    assert!(crowd(&sluice, &origin, &gate, 2_000, 60) >= 60);
    recovers(&sluice);
}

#[test]
fn memory_is_bounded_by_what_the_limits_say_whatever_clients_do() {
    const EACH: usize = 12;
    /// More than the kernel holds on the way.
    const LARGE: u64 = 64 << 20;
    // Unlike a length, chunks make every byte pass through the gateway's own memory.
    let chunks = format!("Transfer-Encoding: chunked\r\n\r\n{LARGE:x}\r\n");
    let gate = Gate::new();
    let (held, endless) = (gate.clone(), chunks.clone());
    let origin = Origin::new(move |connection| {
        let head = connection.read_head()?;
        if head.line.starts_with("GET ") {
            connection.write(format!("HTTP/1.1 200 OK\r\n{endless}"))?;
            connection.write_until_blocked(LARGE)?;
        }
        connection.wait_at(&held)
    });
    let config = Config::to(&[origin.addr()])
        .server(&format!("connections = {}", 3 * EACH))
        .upstream(&format!("connections = {}", 2 * EACH))
        .access_log("off");
    let sluice = Sluice::start(config);
    let before = sluice.peak_memory();
    let (head, field) = (14 << 10, "X-A: ");
    let opening = [
        format!("GET /a HTTP/1.1\r\nHost: a.example\r\n{field}{}", "a".repeat(head)),
        GET.to_owned(),
        format!("PUT /a HTTP/1.1\r\nHost: a.example\r\n{chunks}"),
    ];
    let full = Watched::<usize>::default();
    thread::scope(|scope| {
        for opening in opening.iter().cycle().take(3 * EACH) {
            let (sluice, gate, full) = (&sluice, gate.clone(), &full);
            scope.spawn(move || {
                let mut client = sluice.client();
                client.send(opening);
                if opening.starts_with("PUT") {
                    assert!(client.send_until_blocked(LARGE) < LARGE, "somebody holds all of it");
                    full.change(|full| *full += 1);
                }
                assert!(gate.wait());
            });
        }
        origin.wait_for_heads(2 * EACH);
        let all = full.until(|full| (*full == EACH).then_some(()));
        assert!(all.is_some(), "uploads are taken without end");
        sluice.wait_for_metric("sluice_connections_open", (3 * EACH) as f64);
        is_quiet(&sluice);
        gate.open();
    });
    // docs/operations.md: a head's buffer for each connection on either side, and 256 KiB for
    // each direction in which a body streams.
    let named = (3 * EACH + 2 * EACH) * (16 << 10) + 2 * EACH * 2 * (256 << 10);
    let grown = sluice.peak_memory() - before;
    eprintln!("{grown} bytes of {named} grown, {before} before");
    assert!(grown <= named as u64, "{grown} bytes more than {before}, {named} were named");
    recovers_after_uploads(&sluice, &origin);
}

/// All that was held is given up.
fn recovers_after_uploads(sluice: &Sluice, origin: &Origin) {
    origin.wait_for_open(0);
    sluice.wait_for_metric("sluice_connections_open", 0.0);
    sluice.wait_for_metric("sluice_requests_in_flight", 0.0);
}

/// The folder as the gateway sees it, which has a file system of its own there.
fn inside(sluice: &Sluice, folder: &Path) -> PathBuf {
    let root = format!("/proc/{}/root", sluice.pid());
    Path::new(&root).join(folder.strip_prefix("/").expect("an absolute path"))
}

#[test]
fn a_full_disk_costs_log_lines_until_there_is_room_again() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let origin = Origin::ok("served");
    let config = Config::to(&[origin.addr()])
        .access_log(&format!("file:{}", folder.path().join("access.log").display()));
    let mount = format!("mount -t tmpfs -o size=64k tmpfs {}", folder.path().display());
    let sluice = Sluice::start_arranged(config, |command| {
        after(&mount, &MOUNTING, command);
    });
    let mut client = sluice.client();
    let lost = || sluice.metrics()["sluice_access_log_lost_lines_total"];
    eventually("lines to be lost", || {
        for _ in 0..50 {
            assert_eq!(client.get("/a").status(), 200);
        }
        (lost() > 0.0).then_some(())
    });
    sluice.wait_for_stderr("access_log_failed");
    is_quiet(&sluice);
    assert_eq!(client.get("/a").status(), 200);
    // Somebody makes room.
    let log = inside(&sluice, folder.path()).join("access.log");
    File::options().write(true).open(&log).and_then(|log| log.set_len(0)).expect("room");
    let (room, before) = (Instant::now(), lost());
    assert_eq!(client.get("/now-there-is-room").status(), 200);
    eventually("a line", || {
        fs::read_to_string(&log).ok().filter(|text| text.contains("/now-there-is-room"))
    });
    assert!(room.elapsed() <= RECOVERED_WITHIN, "it took {:?}", room.elapsed());
    sluice.wait_for_stderr("access_log_recovered");
    assert!(lost() <= before + 1.0, "nothing is lost any more");
}
