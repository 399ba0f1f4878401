//! The load against the origin over loopback, bounded by counts; what it says must be so.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sluice_bench::http::request::Wish;
use sluice_bench::load::{
    self, Arrivals, Crowd, Failure, Greed, Head, Outcome, Pace, Target, Work,
};
use sluice_bench::origin::{Origin, Settings};

/// Bounded by `requests_max`; the minute is never used up.
fn work(address: SocketAddr, path: &str, requests_max: u64) -> Work {
    Work {
        target: Target::resolve(&format!("http://{address}{path}"), false).unwrap(),
        head: Head { method: "GET".parse().unwrap(), headers: Vec::new() },
        body_bytes: 0,
        connections: 8,
        pace: Pace::Closed,
        connect_each: false,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(60),
        requests_max,
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(30),
        seed: 1,
        keep_ends: false,
    }
}

fn open(rate: u32) -> Pace {
    Pace::Open { rate: NonZeroU32::new(rate).unwrap(), arrivals: Arrivals::Constant }
}

fn run(work: &Work) -> Outcome {
    load::run(work, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

/// Runs an origin around `act` and says how many requests it served.
fn with_origin<T>(settings: Settings, act: impl FnOnce(SocketAddr) -> T) -> (T, u64) {
    let mut origin = Origin::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
    let (address, stop) = (origin.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        let served = scope.spawn(|| origin.run(&stop).unwrap());
        let found = act(address);
        stop.store(true, Ordering::Relaxed);
        (found, served.join().unwrap())
    })
}

/// As [`with_origin`], and the origin and the load are one thread.
fn together(settings: Settings, work: impl FnOnce(SocketAddr) -> Work) -> (Outcome, u64) {
    let mut origin = Origin::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
    let (work, goes_on) = (work(origin.address()), AtomicBool::new(false));
    let outcome = load::run_looking(&work, &mut origin, &goes_on, &mut |_| ()).unwrap();
    (outcome, origin.run(&AtomicBool::new(true)).unwrap())
}

/// Path, requests, status that comes back, and what is special about the work.
type Case = (&'static str, u64, u16, fn(&mut Work));

#[test]
fn every_request_is_answered_and_counted_once() {
    let cases: &[Case] = &[
        ("/", 2_000, 200, |_| ()),
        ("/", 300, 200, |work| work.connect_each = true),
        ("/?status=503&size=0", 200, 503, |_| ()),
        ("/?status=204", 200, 204, |_| ()),
        ("/?size=300000", 50, 200, |_| ()),
        ("/", 50, 200, |work| work.body_bytes = 300_000),
        ("/", 200, 200, |work| work.head.method = "HEAD".parse().unwrap()),
        ("/", 500, 200, |work| work.pace = open(5_000)),
    ];
    for (path, count, status, change) in cases {
        let work = |address| {
            let mut work = work(address, path, *count);
            change(&mut work);
            work
        };
        let apart = with_origin(Settings::default(), |address| run(&work(address)));
        for (outcome, served) in [apart, together(Settings::default(), work)] {
            let seen = (outcome.answered, served, outcome.failed());
            assert_eq!(seen, (*count, *count, 0), "{path} {outcome:?}");
            assert_eq!(outcome.statuses.get(status), Some(count), "{path}");
            let counted = (outcome.latency.count(), outcome.service.count());
            assert_eq!(counted, (*count, *count), "{path}");
        }
    }
}

/// What is left of the processor's time is what went into requests: a request a millisecond takes
/// little of it, and looking for what comes takes the rest.
#[test]
fn looking_in_vain_is_not_counted_as_work() {
    let work = |address| Work { pace: open(1_000), ..work(address, "/", 500) };
    let (outcome, _) = together(Settings::default(), work);
    assert_eq!(outcome.answered, 500);
    assert!((0.001..0.8).contains(&outcome.load_share()), "{}", outcome.load_share());
}

#[test]
fn warm_up_requests_are_sent_and_not_counted() {
    let (outcome, served) = with_origin(Settings::default(), |address| {
        run(&Work {
            warm_up: Duration::from_millis(100),
            pace: open(1_000),
            ..work(address, "/", 100)
        })
    });
    assert_eq!((outcome.answered, served), (100, 200));
}

/// One connection, a request a millisecond, and one answer that takes 300 ms: some 300 requests
/// were due meanwhile, and 200 of them 100 ms or more before they could be sent. Counted from the
/// send, only the one that stalled was slow.
#[test]
fn a_stall_shows_in_every_request_that_was_due_meanwhile() {
    let stalling =
        Settings { stall_every: 300, stall: Duration::from_millis(300), ..Settings::default() };
    let work = |address| Work { connections: 1, pace: open(1_000), ..work(address, "/", 599) };
    let apart = with_origin(stalling, |address| run(&work(address)));
    for (outcome, _) in [apart, together(stalling, work)] {
        assert_eq!((outcome.answered, outcome.failed()), (599, 0));
        let slow = Duration::from_millis(100);
        let (from_due, from_sent) =
            (outcome.latency.count_from(slow), outcome.service.count_from(slow));
        assert!(from_due >= 190, "{from_due} from due");
        assert!((1..=10).contains(&from_sent), "{from_sent} from sent");
        assert!(outcome.latency.at_us(0.7) > outcome.service.at_us(0.99));
    }
}

#[test]
fn what_was_due_and_never_answered_is_not_forgotten() {
    let never = Settings {
        wish: Wish { delay: Duration::from_secs(600), ..Settings::default().wish },
        ..Settings::default()
    };
    let (outcome, _) = with_origin(never, |address| {
        let (duration, grace) = (Duration::from_millis(100), Duration::from_millis(100));
        run(&Work {
            connections: 1,
            pace: open(200),
            duration,
            grace,
            ..work(address, "/", u64::MAX)
        })
    });
    assert_eq!(outcome.failures.get(&Failure::Unanswered), Some(&1), "{outcome:?}");
    assert_eq!(outcome.failures.get(&Failure::Unsent), Some(&19), "{outcome:?}");
    // All twenty waited at least the grace time, and the percentiles say so.
    assert_eq!(outcome.latency.count_from(Duration::from_millis(99)), 20);
}

#[test]
fn a_request_without_an_answer_times_out() {
    let never = Settings {
        wish: Wish { delay: Duration::from_secs(600), ..Settings::default().wish },
        ..Settings::default()
    };
    let (outcome, _) = with_origin(never, |address| {
        run(&Work { timeout: Duration::from_millis(50), ..work(address, "/", 8) })
    });
    assert_eq!(outcome.failures.get(&Failure::Timeout), Some(&8), "{outcome:?}");
}

#[test]
fn failures_are_told_apart() {
    let cases: &[(&[u8], Failure)] = &[
        (b"SSH-2.0-x\r\n", Failure::Malformed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", Failure::Malformed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx", Failure::Closed),
        (b"", Failure::Closed),
    ];
    for (reply, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (mut stream, _) = listener.accept().unwrap();
                    // The request first: closing on unread bytes would reset the connection.
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        stream.read_exact(&mut byte).unwrap();
                        request.push(byte[0]);
                    }
                    stream.write_all(reply).unwrap();
                }
            });
            run(&Work { connections: 1, ..work(address, "/", 3) })
        });
        assert_eq!(
            outcome.failures.get(expected),
            Some(&3),
            "{} {outcome:?}",
            reply.escape_ascii()
        );
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = run(&Work { connections: 1, ..work(closed, "/", 3) });
    assert_eq!(outcome.failures.get(&Failure::Connect), Some(&3), "{outcome:?}");
}

#[test]
fn a_set_stop_ends_a_run_at_once() {
    let (outcome, _) = with_origin(Settings::default(), |address| {
        load::run(&work(address, "/", u64::MAX), &AtomicBool::new(true), &mut |_| ()).unwrap()
    });
    assert_eq!(outcome.failed(), 0);
}

/// The first is answered 408 and closed, the second closed without a word, the third reset.
#[test]
fn a_crowd_sees_who_is_sent_away_and_how() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let crowd = Crowd::gather(address, 3, "GET / HTTP/1.1\r\n", false).unwrap();
    assert_eq!(crowd.present(), 3);
    let stopped = crowd.see_off(Duration::from_secs(60), &AtomicBool::new(true)).unwrap();
    assert_eq!(stopped, []);
    let mut guests: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
    for guest in &mut guests[..2] {
        guest.read_exact(&mut [0; 16]).unwrap();
    }
    guests[0].write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
    // The last has unread bytes.
    drop(guests);
    let seen = crowd.see_off(Duration::from_secs(60), &AtomicBool::new(false)).unwrap();
    let mut statuses: Vec<_> = seen.iter().map(|farewell| farewell.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [None, None, Some(408)]);
    assert_eq!(crowd.present(), 0);
}

#[test]
fn a_crowd_rests_after_its_answers() {
    let ((), served) = with_origin(Settings::default(), |address| {
        let text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let crowd = Crowd::gather(address, 100, text, true).unwrap();
        assert_eq!(crowd.present(), 100);
        let bad = "GET /?status=503 HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(Crowd::gather(address, 1, bad, true).is_err());
    });
    assert_eq!(served, 101);
}

#[test]
fn the_greedy_take_what_they_are_given() {
    for greed in [Greed::Stream, Greed::Pipeline] {
        let ((), served) = with_origin(Settings::default(), |address| {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let greedy = scope.spawn(|| load::indulge(address, "/greedy/", greed, &over));
                // Another client is served beside it.
                let beside = run(&work(address, "/", 2_000));
                assert_eq!((beside.answered, beside.failed()), (2_000, 0), "{greed:?}");
                over.store(true, Ordering::Relaxed);
                greedy.join().unwrap().unwrap();
            });
        });
        assert!(served >= 2_000, "{greed:?}: {served}");
    }
}

/// What is counted for a window is what went through in it, not whole answers.
#[test]
fn bytes_are_counted_both_ways() {
    for (path, up) in [("/?size=100000", 0), ("/", 100_000)] {
        let (outcome, _) = with_origin(Settings::default(), |address| {
            run(&Work { body_bytes: up, ..work(address, path, 50) })
        });
        // The window ends with the last request's beginning, when seven others may be under way.
        let expected = 42 * 100_000..51 * 100_000;
        assert!(expected.contains(&outcome.moved_bytes), "{path}: {outcome:?}");
    }
}
