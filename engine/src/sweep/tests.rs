//! Tests of the sweeper, in a file of their own for its length.

use std::future::Future;
use std::io::Read;

use super::*;
use crate::runtime::{Driver, Listener, Socket, Stop, Wanted, block_on};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Nobody at rest is due for longer than any worker sleeps.
const LONG: Duration = Duration::MAX;

fn with_socket<F: Future<Output = ()>>(test: impl FnOnce(std::net::TcpStream, Socket) -> F) {
    let ran = block_on(Wanted::Only(Driver::Epoll), |driver, _| async move {
        let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = std.local_addr().unwrap();
        let listener = Listener::new(std, driver).unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let (socket, _) = listener.accept(&Stop::default()).await.unwrap().unwrap();
        test(client, socket).await;
    });
    ran.unwrap();
}

#[test]
fn a_deadline_fires_once_it_has_passed_and_not_before() {
    with_socket(|mut client, socket| async move {
        let sweeper = Sweeper::new(at(1000));
        let watch = sweeper.watch(socket.shutter.clone());
        // (now ms, set to ms from now, fired after the sweep)
        let table = [
            (1000, Some(100), false),
            (1090, Some(100), false), // moved on
            (1180, None, false),
            (1189, None, false),
            (1240, None, true),
        ];
        for (now, set, fired) in table {
            sweeper.sweep(at(now));
            if let Some(ms) = set {
                watch.set(at(now), Duration::from_millis(ms), Until::Both);
            }
            assert_eq!(watch.fired(), fired, "at {now} ms");
        }
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the socket was shut");
    });
}

#[test]
fn a_worker_that_nobody_asks_dozes_until_a_deadline_is_set() {
    with_socket(|_client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let watch = sweeper.watch(socket.shutter.clone());
        for _ in 0..DOZE_AFTER {
            watch.set(at(0), Duration::from_secs(1), Until::Both);
            assert_eq!(sweeper.next_tick(false, LONG).await, TICK, "it is asked");
        }
        for _ in 1..DOZE_AFTER {
            assert_eq!(sweeper.next_tick(false, LONG).await, TICK, "not for long enough yet");
        }
        assert_eq!(sweeper.next_tick(false, LONG).await, DOZE);
        // Asked amid its doze, it wakes then and not at the doze's end.
        let ran = runtime::first(vec![
            runtime::spawn({
                let sweeper = Rc::clone(&sweeper);
                async move { sweeper.next_tick(false, LONG).await }
            }),
            runtime::spawn(async move {
                runtime::sleep(Duration::from_millis(1)).await;
                watch.set(at(0), Duration::from_secs(1), Until::Both);
                runtime::sleep(DOZE / 2).await;
                TICK
            }),
        ]);
        assert_eq!(ran.await, DOZE, "the tick came before half of the doze was over");
        for _ in 0..=DOZE_AFTER {
            assert_eq!(sweeper.next_tick(true, LONG).await, TICK, "a request is waited for");
        }
    });
}

#[test]
fn with_no_deadline_a_worker_sleeps_for_longer_but_not_over_whom_is_due() {
    with_socket(|_client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let watch = sweeper.watch(socket.shutter.clone());
        sweeper.quiet.set(DOZE_AFTER);
        sweeper.pulse.set(Pulse::Dozing);
        let (short, between) = (DOZE / 2, DOZE + TICK);
        assert_eq!(sweeper.next_tick(false, between).await, between);
        assert_eq!(sweeper.next_tick(false, short).await, short);
        assert_eq!(sweeper.next_tick(false, Duration::ZERO).await, TICK);
        assert_eq!(sweeper.next_tick(false, LONG).await, SLEEP);
        watch.set(at(0), Duration::from_secs(3), Until::Both);
        sweeper.quiet.set(DOZE_AFTER);
        sweeper.pulse.set(Pulse::Dozing);
        assert_eq!(sweeper.next_tick(false, between).await, DOZE, "there is one");
        watch.clear();
        sweeper.sweep(at(4_000));
        assert_eq!(sweeper.next_tick(false, between).await, between, "there was one");
    });
}

#[test]
fn deadlines_beyond_the_wheel_and_sooner_ones_after_later_ones_are_kept() {
    with_socket(|_client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let watch = sweeper.watch(socket.shutter.clone());
        watch.set(at(0), Duration::from_secs(90), Until::Idle);
        for ms in (0..89_900).step_by(50) {
            sweeper.sweep(at(ms));
        }
        assert!(!watch.fired());
        watch.set(at(89_900), Duration::from_millis(50), Until::Read);
        sweeper.sweep(at(90_000));
        assert!(watch.fired(), "the sooner one counts");
        watch.set(at(90_000), Duration::from_secs(30), Until::Both);
        sweeper.sweep(at(110_000));
        assert!(!watch.fired(), "setting anew forgets the last");
        sweeper.sweep(at(180_000));
        assert!(watch.fired(), "a stalled sweeper catches up");
    });
}

#[test]
fn who_waits_is_woken_once_it_has_waited_and_the_socket_stays() {
    with_socket(|client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let watch = Rc::new(sweeper.watch(socket.shutter.clone()));
        let waits = {
            let watch = Rc::clone(&watch);
            poll_fn(move |cx| watch.poll_waited(at(0), Duration::from_millis(20), cx))
        };
        let waits = runtime::spawn(waits);
        // Lets it begin to wait.
        runtime::sleep(Duration::from_millis(1)).await;
        sweeper.sweep(at(19));
        assert!(!watch.fired());
        sweeper.sweep(at(60));
        waits.await;
        client.set_nonblocking(true).unwrap();
        let open = (&client).read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
        // Another deadline in between, and the wait begins anew.
        watch.set(at(60), Duration::from_secs(1), Until::Read);
        let nobody = Context::from_waker(Waker::noop());
        let again = || watch.poll_waited(at(70), Duration::from_millis(20), &nobody);
        assert!(again().is_pending());
        sweeper.sweep(at(140));
        assert!(again().is_ready());
    });
}

#[test]
fn a_drain_shuts_only_what_has_been_idle() {
    with_socket(|_client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let (busy, idle) =
            (sweeper.watch(socket.shutter.clone()), sweeper.watch(socket.shutter.clone()));
        busy.set(at(0), Duration::from_secs(10), Until::Read);
        idle.set(at(500), Duration::from_secs(10), Until::Idle);
        sweeper.sweep_idle(at(1200), Duration::from_secs(1));
        assert!(!busy.fired() && !idle.fired());
        sweeper.sweep_idle(at(1600), Duration::from_secs(1));
        assert!(!busy.fired() && idle.fired());
    });
}

#[test]
fn a_place_given_back_is_not_fired_for_its_predecessor() {
    with_socket(|_client, socket| async move {
        let sweeper = Sweeper::new(at(0));
        let first = sweeper.watch(socket.shutter.clone());
        first.set(at(0), Duration::from_millis(20), Until::Both);
        drop(first);
        let second = sweeper.watch(socket.shutter.clone());
        sweeper.sweep(at(1000));
        assert!(!second.fired());
    });
}
