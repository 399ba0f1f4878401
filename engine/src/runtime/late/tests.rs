//! When reads are late, and that a late read is as good as any other.

use std::future::Future;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::*;
use crate::runtime::socket::has_ended;
use crate::runtime::{
    Driver, Listener, Socket, Stop, Task, Wanted, block_on, given_up, spawn, within,
};

#[test]
fn with_few_reads_in_a_turn_none_is_late_but_those_that_tell() {
    let mut gate = Gate::default();
    for round in 0..5 {
        for read in 0..TELLS {
            let late = gate.ask();
            assert_eq!(late, read == 0, "round {round}, read {read}");
            if late {
                assert!(!gate.turn(), "one read is no crowd");
            }
        }
    }
}

#[test]
fn a_crowd_in_the_turn_of_the_one_that_tells_opens_and_calm_turns_close() {
    for crowd in 1..CROWD * 2 {
        // Those before it, and in other turns, are not of the crowd.
        let mut gate = Gate { until_told: 3, ..Gate::default() };
        assert!(!gate.ask() && !gate.ask() && !gate.ask());
        assert!(gate.ask(), "it tells");
        for _ in 1..crowd {
            assert!(!gate.ask());
        }
        assert_eq!(gate.turn(), crowd >= CROWD, "{crowd}");
        if crowd < CROWD {
            continue;
        }
        for _ in 1..CALM {
            assert!(gate.ask(), "open");
            assert!(gate.turn(), "still");
        }
        for _ in 0..CROWD {
            assert!(gate.ask(), "open");
        }
        assert!(gate.turn(), "busy again");
        for calm in 1..=CALM {
            assert_eq!(gate.turn(), calm < CALM, "{calm}");
        }
    }
}

#[test]
fn looks_in_vain_close_for_long_unless_one_in_four_finds_something() {
    let open = |gate: &mut Gate| {
        while !gate.ask() {}
        for _ in 1..CROWD {
            let _ = gate.ask();
        }
        gate.turn()
    };
    let mut gate = Gate::default();
    assert!(open(&mut gate));
    for look in 0..1000 {
        gate.looked(look % 4 == 0);
        let _ = (0..CROWD).map(|_| gate.ask()).collect::<Vec<_>>();
        assert!(gate.turn(), "look {look}");
    }
    gate.looked(true);
    for look in 1..=PATIENCE {
        gate.looked(false);
        let _ = (0..CROWD).map(|_| gate.ask()).collect::<Vec<_>>();
        assert_eq!(gate.turn(), look < PATIENCE, "look {look}");
    }
    let vain = (0..).take_while(|_| !gate.ask()).count();
    assert_eq!(vain, usize::from(TELLS_RARELY));
    // And then as before.
    for _ in 1..CROWD {
        let _ = gate.ask();
    }
    assert!(gate.turn());
}

/// Every driver this machine has, where reads are late: rings.
fn on_every_ring<F: Future<Output = ()>>(test: impl Fn(Driver) -> F) {
    for driver in Driver::LADDER.into_iter().filter(|driver| *driver != Driver::Epoll) {
        // Not to be had on every machine.
        let _ = block_on(Wanted::Only(driver), |driver, _| {
            let test = test(driver);
            async move { within(Duration::from_secs(20), test).await.expect("it hangs") }
        });
    }
}

struct Pair {
    there: std::net::TcpStream,
    here: Socket,
}

async fn pairs(driver: Driver, count: usize) -> Vec<Pair> {
    let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = std.local_addr().unwrap();
    let listener = Listener::new(std, driver).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..count {
        let there = std::net::TcpStream::connect(address).unwrap();
        there.set_nodelay(true).unwrap();
        let (here, _) = listener.accept(&Stop::default()).await.unwrap().unwrap();
        pairs.push(Pair { there, here });
    }
    pairs
}

/// How many reads of this thread are late.
fn late() -> usize {
    HERE.with_borrow(|here| here.as_ref().map_or(0, |late| late.list.borrow().waiting.len()))
}

fn set(gate: Gate) {
    HERE.with_borrow(|here| here.as_ref().unwrap().list.borrow_mut().gate = gate);
}

/// Open, whatever the load.
fn be_busy() {
    set(Gate { open: true, ..Gate::default() });
}

/// Begin to read late, and be in the list.
fn begin(mut here: Socket) -> Task<(io::Result<usize>, Vec<u8>, Socket)> {
    spawn(async move {
        here.reader.arm_late(Vec::with_capacity(256));
        let (result, buffer) = here.reader.armed_read().await;
        (result, buffer, here)
    })
}

/// Let what has been begun be late, and wait until none is any more.
async fn none_late() {
    loop {
        crate::runtime::sleep(Duration::from_millis(1)).await;
        if late() == 0 {
            return;
        }
    }
}

#[test]
fn late_reads_bring_what_is_there_what_comes_later_and_an_end() {
    on_every_ring(|driver| async move {
        for wait in [false, true] {
            let mut pairs = pairs(driver, 9).await;
            be_busy();
            let mut reads = Vec::new();
            for (i, pair) in (0_u8..).zip(pairs.drain(..)) {
                let Pair { mut there, here } = pair;
                if !wait {
                    there.write_all(&[i; 100]).unwrap();
                }
                reads.push((there, begin(here)));
            }
            if wait {
                none_late().await;
            }
            for (i, (mut there, read)) in (0_u8..).zip(reads) {
                if wait {
                    there.write_all(&[i; 100]).unwrap();
                }
                let (result, buffer, mut here) = read.await;
                assert_eq!((result.unwrap(), buffer), (100, vec![i; 100]), "{driver:?}");
                drop(there);
                be_busy();
                here.reader.arm_late(Vec::with_capacity(256));
                let (result, buffer) = here.reader.armed_read().await;
                assert_eq!((result.unwrap(), buffer.len()), (0, 0), "{driver:?}: its end");
            }
        }
    });
}

/// Poll it once.
async fn is_pending(here: &mut Socket) -> bool {
    poll_fn(|cx| Poll::Ready(here.reader.poll_read(cx).is_pending())).await
}

fn listed() -> Rc<Slot> {
    HERE.with_borrow(|here| Rc::clone(&here.as_ref().unwrap().list.borrow().waiting[0].0))
}

#[test]
fn a_look_receives_without_asking_the_ring() {
    on_every_ring(|driver| async move {
        let Pair { mut there, mut here } = pairs(driver, 1).await.remove(0);
        be_busy();
        here.reader.arm_late(Vec::with_capacity(256));
        assert!(is_pending(&mut here).await && late() == 1);
        assert!(!listed().look(), "nothing is there");
        assert!(is_pending(&mut here).await && late() == 1, "{driver:?}: it is there once");
        there.write_all(b"hello").unwrap();
        assert!(listed().look());
        let read = poll_fn(|cx| Poll::Ready(here.reader.poll_read(cx))).await;
        let Poll::Ready((result, buffer)) = read else { panic!("{driver:?}: not received") };
        assert_eq!((result.unwrap(), &buffer[..]), (5, &b"hello"[..]), "{driver:?}");
        assert!(!here.reader.armed());
    });
}

#[test]
fn what_is_late_when_nothing_is_to_be_any_more_is_handed_in() {
    on_every_ring(|driver| async move {
        for patience in [0, PATIENCE] {
            let Pair { mut there, here } = pairs(driver, 1).await.remove(0);
            set(Gate { patience, open: patience == 0, ..Gate::default() });
            let read = begin(here);
            none_late().await;
            there.write_all(b"hello").unwrap();
            let (result, buffer, _) = read.await;
            assert_eq!((result.unwrap(), &buffer[..]), (5, &b"hello"[..]), "{driver:?}");
        }
    });
}

#[test]
fn a_late_read_can_be_given_up_and_loses_nothing() {
    on_every_ring(|driver| async move {
        let Pair { mut there, mut here } = pairs(driver, 1).await.remove(0);
        be_busy();
        here.reader.arm_late(Vec::with_capacity(256));
        let shutter = here.shutter.clone();
        let read = spawn(async move {
            let (result, buffer) = here.reader.armed_read().await;
            (result, buffer, here)
        });
        let giving_up = spawn(async move {
            assert_eq!(late(), 1, "it is in the list");
            shutter.give_up_read();
        });
        giving_up.await;
        let (result, _, mut here) = read.await;
        assert!(given_up(&result.unwrap_err()), "{driver:?}");
        assert!(!here.reader.armed());
        there.write_all(b"hello").unwrap();
        let (result, buffer) = here.reader.read(Vec::with_capacity(256)).await;
        assert_eq!((result.unwrap(), &buffer[..]), (5, &b"hello"[..]), "{driver:?}");
        // With no read armed it can be taken apart.
        let Socket { reader, writer, shutter } = here;
        drop(shutter);
        assert!(!has_ended(&Socket::apart(reader, writer).unwrap()));
    });
}

#[test]
fn who_has_the_descriptor_next_is_not_read_from() {
    on_every_ring(|driver| async move {
        let mut pairs = pairs(driver, 2).await;
        let (mut first, mut second) = (pairs.remove(0), pairs.remove(0));
        be_busy();
        first.here.reader.arm_late(Vec::with_capacity(256));
        assert!(is_pending(&mut first.here).await && late() == 1);
        let Socket { reader, writer, shutter } = first.here;
        let fd = shutter.descriptor().as_raw_fd();
        drop((reader, writer, shutter));
        // What has its number now holds bytes of its own. (The ring closes it with what had it.)
        second.there.write_all(b"second").unwrap();
        // SAFETY: nothing here drops it.
        let mut number = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        rustix::io::dup2(second.here.shutter.descriptor(), &mut number).unwrap();
        assert!(listed().look(), "there is nothing to look for any more");
        none_late().await;
        let (result, buffer) = second.here.reader.read(Vec::with_capacity(256)).await;
        assert_eq!((result.unwrap(), &buffer[..]), (6, &b"second"[..]), "{driver:?}");
    });
}
