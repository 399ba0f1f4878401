//! What is remembered of a socket's readiness, with events taken by hand.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::runtime::{Driver, SPARE, Wanted, block_on, given_up, spawn};

/// Sockets that nobody but the test tells of events.
fn by_hand<F: Future<Output = ()>>(test: impl FnOnce(Rc<Polls>) -> F) {
    let ran = block_on(Wanted::Only(Driver::Epoll), |_, _| test(Polls::new().unwrap()));
    ran.unwrap();
}

fn pair(polls: &Rc<Polls>) -> (TcpStream, Polled) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    (client, Polled::new(Rc::clone(polls), server.into()).unwrap())
}

fn state(polled: &Polled) -> u8 {
    polled.change(|watched| watched.state)
}

/// Take events until they have told all of this.
fn told(polled: &Polled, bits: u8) {
    while state(polled) & bits != bits {
        polled.place.polls.look();
        std::thread::yield_now();
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Read once: what came, or None while nothing is there. Counts how often it is woken.
fn read(polled: &Polled, count: &Arc<Count>) -> Option<io::Result<Vec<u8>>> {
    let mut buffer = Vec::with_capacity(64 + SPARE);
    let waker = Waker::from(Arc::clone(count));
    match polled.poll_recv(&mut Context::from_waker(&waker), &mut buffer) {
        Poll::Ready(result) => Some(result.map(|_| buffer)),
        Poll::Pending => None,
    }
}

fn read_some(polled: &Polled) -> Option<Vec<u8>> {
    read(polled, &Arc::default()).map(Result::unwrap)
}

#[test]
fn a_read_that_brings_less_than_it_had_room_for_is_the_last_until_more_is_told() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        let count = Arc::default();
        client.write_all(b"hello").unwrap();
        told(&polled, READABLE);
        assert_eq!(read_some(&polled).unwrap(), b"hello");
        assert_eq!(state(&polled) & READABLE, 0);
        assert!(read(&polled, &count).is_none());
        client.write_all(b"again").unwrap();
        told(&polled, READABLE);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "who waits is woken");
        assert_eq!(read_some(&polled).unwrap(), b"again");
    });
}

#[test]
fn what_fills_its_buffer_may_not_have_been_all() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        client.write_all(&[b'x'; 100]).unwrap();
        while rustix::io::ioctl_fionread(&polled).unwrap() < 100 {
            std::thread::yield_now();
        }
        told(&polled, READABLE);
        assert_eq!(read_some(&polled).unwrap().len(), 64);
        assert_eq!(read_some(&polled).unwrap().len(), 36);
        assert!(read_some(&polled).is_none());
    });
}

#[test]
fn an_end_told_together_with_bytes_is_read_behind_them() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        client.write_all(b"bye").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        told(&polled, READABLE | MARKED);
        assert_eq!(read_some(&polled).unwrap(), b"bye");
        assert_eq!(read_some(&polled).unwrap(), b"");
        assert_eq!(read_some(&polled).unwrap(), b"", "and again");
    });
}

#[test]
fn an_end_that_comes_behind_the_bytes_told_is_told_in_turn() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        client.write_all(b"bye").unwrap();
        told(&polled, READABLE);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_some(&polled).unwrap(), b"bye");
        told(&polled, READABLE | MARKED);
        assert_eq!(read_some(&polled).unwrap(), b"");
        assert_eq!(read_some(&polled).unwrap(), b"", "and again");
    });
}

#[test]
fn what_stands_behind_an_urgent_mark_is_read_though_the_mark_made_a_read_short() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        client.write_all(b"a").unwrap();
        rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
        client.write_all(b"c").unwrap();
        told(&polled, READABLE | MARKED);
        assert_eq!(read_some(&polled).unwrap(), b"a");
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while !matches!(rustix::net::recv(&polled, &mut [0; 1], look), Ok((_, 1))) {
            std::thread::yield_now();
        }
        assert_eq!(read_some(&polled).unwrap(), b"c", "no event tells of it any more");
        assert!(read_some(&polled).is_none());
        assert_eq!(state(&polled) & MARKED, 0, "the mark is behind it");
    });
}

#[test]
fn a_read_that_waits_can_be_given_up_and_loses_nothing() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        let count = Arc::default();
        polled.give_up_read();
        assert!(read(&polled, &count).is_none(), "nobody was waiting");
        polled.give_up_read();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(given_up(&read(&polled, &count).unwrap().unwrap_err()));
        assert!(read(&polled, &count).is_none(), "only the one that waited");
        polled.give_up_read();
        client.write_all(b"late").unwrap();
        told(&polled, READABLE);
        assert_eq!(read(&polled, &count).unwrap().unwrap(), b"late");
        assert!(read(&polled, &count).is_none(), "what had come was read instead");
    });
}

#[test]
fn a_read_is_given_up_though_its_socket_was_taken_for_readable() {
    by_hand(|polls| async move {
        let (mut client, polled) = pair(&polls);
        let count = Arc::default();
        assert!(read(&polled, &count).is_none());
        client.write_all(b"x").unwrap();
        told(&polled, READABLE);
        rustix::net::recv(&polled, &mut [0; 8], RecvFlags::empty()).unwrap();
        polled.change(|watched| watched.state |= GIVEN_UP);
        assert!(given_up(&read(&polled, &count).unwrap().unwrap_err()));
    });
}

#[test]
fn an_event_is_not_told_to_who_has_taken_the_place_meanwhile() {
    by_hand(|polls| async move {
        let (mut client, gone) = pair(&polls);
        client.write_all(b"for nobody").unwrap();
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let event = loop {
            let told = polls.instance.now(&mut events).first().copied();
            if let Some(event @ Event { flags, .. }) = told
                && flags.contains(EventFlags::IN)
            {
                break event;
            }
        };
        drop(gone);
        let (_other, next) = pair(&polls);
        assert_eq!(next.place.index, 0, "the place is taken again");
        let count = Arc::default();
        assert!(read(&next, &count).is_none());
        polls.tell(&event);
        assert_eq!((state(&next) & READABLE, count.0.load(Ordering::Relaxed)), (0, 0));
    });
}

#[test]
fn a_task_that_nobody_can_wake_any_more_takes_its_sockets_along() {
    by_hand(|polls| async move {
        let ((_one, awaited), (_two, held)) = (pair(&polls), pair(&polls));
        let awaited = Rc::new(awaited);
        let wait = Rc::downgrade(&awaited);
        drop(spawn(async move {
            std::future::poll_fn(|cx| match wait.upgrade() {
                Some(polled) => polled.poll_ready(Direction::Read, cx),
                None => Poll::Ready(()),
            })
            .await;
            drop(held);
        }));
        // Behind it.
        spawn(async {}).await;
        assert_eq!(polls.places.borrow().free.len(), 0);
        drop(awaited);
        assert_eq!(polls.places.borrow().free.len(), 2);
    });
}
