//! Many at once: a busy worker looks for what will be there before it asks its driver for it; and
//! one that is told to looks for what comes next instead of sleeping.

use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::origin::ok;
use sluice_tests::{Client, Config, Origin, Sluice, eventually};

const THREADS: usize = 4;
/// Of each thread.
const CLIENTS: usize = 12;
const ROUNDS: usize = 40;

fn ask(client: &mut Client, body: &str) {
    let length = body.len();
    client.send(format!(
        "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Ask on all connections before any answer is read, again and again.
fn ask_all(sluice: &Sluice, thread: usize) {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| sluice.client()).collect();
    for round in 0..ROUNDS {
        let body = |client: usize| format!("{thread}/{client}/{round} ").repeat(1 + client * 40);
        for (i, client) in clients.iter_mut().enumerate() {
            ask(client, &body(i));
        }
        // One leaves, and another comes in its place, perhaps with the same descriptor.
        let leaves = round % CLIENTS;
        clients[leaves] = sluice.client();
        ask(&mut clients[leaves], &body(leaves));
        for (i, client) in clients.iter_mut().enumerate() {
            let response = client.read_response();
            assert_eq!((response.status(), response.text()), (200, body(i)), "round {round}");
        }
    }
}

#[test]
fn many_who_ask_at_once_have_their_own_answers_while_others_leave() {
    let origin = Origin::answering(|request| ok(&String::from_utf8_lossy(&request.body)));
    let config = Config::to(&[origin.addr()]).upstream("connections = 512");
    let sluice = Sluice::start(config);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let sluice = &sluice;
            scope.spawn(move || ask_all(sluice, thread));
        }
    });
    sluice.wait_for_metric("sluice_connections_open", 0.0);
    assert_eq!(sluice.client().get("/a").status(), 200);
}

const LOOKED: &str = "sluice_busy_poll_seconds_total";

fn looking(origin: &Origin, busy_poll: &str) -> Config {
    Config::to(&[origin.addr()]).server(&format!("busy_poll = \"{busy_poll}\""))
}

fn looked(sluice: &Sluice) -> f64 {
    sluice.metrics()[LOOKED]
}

/// What it has spent on looking, once it does so no more: not for a few of its ticks either.
fn looked_in_all(sluice: &Sluice) -> f64 {
    let (mut last, mut same) = (f64::NAN, 0);
    eventually("no more looks", || {
        let seen = std::mem::replace(&mut last, looked(sluice));
        same = if seen.to_bits() == last.to_bits() { same + 1 } else { 0 };
        (same == 20).then_some(last)
    })
}

#[test]
fn a_worker_looks_for_what_comes_next_after_each_request_for_as_long_as_it_is_told() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(looking(&origin, "10ms"));
    let began = Instant::now();
    let mut client = sluice.client();
    let mut before = 0.0;
    for round in 1..=5 {
        assert_eq!(client.get("/a").text(), "hello");
        let in_all = looked_in_all(&sluice);
        // But for the turns in which something came; and not after each of its ticks, of which there
        // are sixty before it dozes, whoever else had its core meanwhile.
        let looked = in_all - before;
        assert!(looked > 0.008 && looked < 0.3, "round {round}: {looked} s");
        before = in_all;
    }
    assert!(before < began.elapsed().as_secs_f64(), "{before}");
}

#[test]
fn a_reload_has_a_worker_look_for_what_comes_next_and_sleep_again() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(looking(&origin, "0s"));
    let mut client = sluice.client();
    let mut ask = || assert_eq!(client.get("/a").text(), "hello");
    ask();
    assert_eq!(looked(&sluice).to_bits(), 0.0_f64.to_bits());
    assert_eq!(sluice.reload(looking(&origin, "10ms")).code, Some(0));
    ask();
    let before = looked_in_all(&sluice);
    assert!(before > 0.0);
    assert_eq!(sluice.reload(looking(&origin, "0s")).code, Some(0));
    // Whoever looked when it was told may have been in the middle of it.
    let before = looked_in_all(&sluice).max(before);
    ask();
    assert_eq!(looked_in_all(&sluice).to_bits(), before.to_bits());
}

#[test]
fn a_timeout_is_kept_while_a_worker_looks() {
    // An answer that takes longer than the timeout, while another client keeps the worker awake.
    let origin = Origin::new(|connection| {
        loop {
            match connection.read_request()?.head.line.contains("/slow") {
                true => connection.stall()?,
                false => connection.write(ok("hello"))?,
            }
        }
    });
    let config = looking(&origin, "10ms").route("timeout = \"300ms\"");
    let sluice = Sluice::start(config);
    let mut slow = sluice.client();
    let began = Instant::now();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut other = sluice.client();
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(move || (slow.read_response().status(), began.elapsed()));
        while !answer.is_finished() {
            assert_eq!(other.get("/a").text(), "hello");
        }
        answer.join().expect("it was answered")
    });
    assert_eq!(answer.0, 504);
    assert!(answer.1 >= Duration::from_millis(300), "{answer:?}");
}
