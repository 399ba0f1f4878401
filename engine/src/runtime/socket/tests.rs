//! Sockets on every driver that this machine has.

use std::io::{Read, Write};

use super::*;
use crate::runtime::{Listener, Stop, Wanted, block_on, sleep};

/// Every driver this machine has.
fn on_every_driver<F: Future<Output = ()>>(test: impl Fn(Driver) -> F) {
    let mut ran = 0;
    for driver in Driver::LADDER {
        ran += usize::from(block_on(Wanted::Only(driver), |d, _| test(d)).is_ok());
    }
    assert!(ran > 0, "epoll at least");
}

fn pair(driver: Driver) -> (Listener, SocketAddr) {
    let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = std.local_addr().unwrap();
    (Listener::new(std, driver).unwrap(), address)
}

async fn accepted(driver: Driver) -> (std::net::TcpStream, Socket) {
    let (listener, address) = pair(driver);
    let client = std::net::TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(&Stop::default()).await.unwrap().unwrap();
    (client, socket)
}

#[test]
fn a_read_that_nobody_waits_for_any_more_loses_nothing() {
    on_every_driver(|driver| async move {
        let (mut client, mut socket) = accepted(driver).await;
        socket.reader.arm(Vec::with_capacity(64));
        let gave_up =
            monoio::time::timeout(Duration::from_millis(5), socket.reader.armed_read()).await;
        assert!(gave_up.is_err(), "nothing was sent yet");
        client.write_all(b"hello").unwrap();
        let (result, buffer) = socket.reader.armed_read().await;
        assert_eq!((result.unwrap(), &buffer[..]), (5, &b"hello"[..]), "{driver:?}");
    });
}

#[test]
fn shutting_wakes_a_pending_read() {
    on_every_driver(|driver| async move {
        let (client, mut socket) = accepted(driver).await;
        let shutter = socket.shutter.clone();
        drop(spawn_shut(shutter));
        let (result, _) = socket.reader.read(Vec::with_capacity(64)).await;
        assert_eq!(result.unwrap(), 0, "{driver:?}");
        drop(client);
    });
}

#[test]
fn shutting_wakes_a_pending_write() {
    on_every_driver(|driver| async move {
        let (client, mut socket) = accepted(driver).await;
        drop(spawn_shut(socket.shutter.clone()));
        // More than both socket buffers hold, and a client that never reads.
        let result = socket.writer.write_all(&vec![0; 64 << 20], || ()).await;
        assert!(result.is_err(), "{driver:?}");
        drop(client);
    });
}

#[test]
fn a_write_waits_only_when_there_is_no_room_and_then_once_for_each_time() {
    on_every_driver(|driver| async move {
        let (mut client, mut socket) = accepted(driver).await;
        let waits = std::cell::Cell::new(0_u32);
        let count = || waits.set(waits.get() + 1);
        socket.writer.write_all(b"small", count).await.unwrap();
        assert_eq!(waits.get(), 0, "{driver:?}");
        client.read_exact(&mut [0; 5]).unwrap();
        // More than both socket buffers hold, taken by one who reads as fast as it comes.
        let large: Vec<u8> = (0..32_u32 << 20).map(|i| (i % 251) as u8).collect();
        let expected = large.clone();
        let thread = std::thread::spawn(move || {
            let mut got = vec![0; expected.len()];
            client.read_exact(&mut got).unwrap();
            got == expected
        });
        socket.writer.write_all(&large, count).await.unwrap();
        assert!(thread.join().unwrap(), "{driver:?}: not what was sent");
        // Each time for a good part of a buffer, not for every few bytes.
        assert!((1..2000).contains(&waits.get()), "{driver:?}: {}", waits.get());
    });
}

fn spawn_shut(shutter: Shutter) -> crate::runtime::Task<()> {
    crate::runtime::spawn(async move {
        sleep(Duration::from_millis(5)).await;
        shutter.shut(Shutdown::Both);
    })
}

#[test]
fn stopping_ends_a_pending_accept() {
    on_every_driver(|driver| async move {
        let (listener, _) = pair(driver);
        let stop = Rc::new(Stop::default());
        let later = Rc::clone(&stop);
        drop(crate::runtime::spawn(async move {
            sleep(Duration::from_millis(5)).await;
            later.stop();
        }));
        assert!(listener.accept(&stop).await.unwrap().is_none(), "{driver:?}");
    });
}

#[test]
fn connections_that_wait_when_accepting_stops_are_not_lost() {
    on_every_driver(|driver| async move {
        let (listener, address) = pair(driver);
        let mut clients: Vec<_> =
            (0..3).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let stop = Stop::default();
        stop.stop();
        assert!(listener.accept(&stop).await.unwrap().is_none());
        let mut waiting = 0;
        while let Some((mut socket, _)) = listener.accept_waiting() {
            waiting += 1;
            socket.writer.write_all(b"hello", || ()).await.unwrap();
        }
        assert_eq!(waiting, 3, "{driver:?}");
        for client in &mut clients {
            client.read_exact(&mut [0; 5]).unwrap();
        }
    });
}

#[test]
fn a_bell_rings_across_threads() {
    on_every_driver(|driver| async move {
        let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut bell = Bell::new(here, driver).unwrap();
        let thread = std::thread::spawn(move || {
            there.write_all(&[1]).unwrap();
            there
        });
        assert!(bell.rung().await, "{driver:?}");
        drop(thread.join().unwrap());
        assert!(!bell.rung().await, "{driver:?}: the other end is gone");
    });
}

#[test]
fn bytes_written_arrive_in_order() {
    on_every_driver(|driver| async move {
        let (mut client, mut socket) = accepted(driver).await;
        socket.writer.write_all(b"hello", || ()).await.unwrap();
        socket.writer.finish().await;
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert_eq!(got, "hello", "{driver:?}");
    });
}
