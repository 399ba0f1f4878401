//! The only place that names monoio: a dozen concrete operations over its two drivers.
//!
//! Everything above works with [`Listener`], [`Reader`], [`Writer`], [`spawn`] and [`sleep_until`].
//! A swap to another completion-based runtime is a rewrite of this folder and nothing else.

mod awake;
mod driver;
#[cfg_attr(not(feature = "uring"), expect(dead_code, reason = "without a ring nothing is late"))]
mod late;
mod listener;
mod polled;
mod pump;
mod readiness;
mod socket;
mod splice;
mod task;
mod turn;

pub(crate) use awake::Awake;
pub use driver::available;
pub(crate) use driver::{Driver, Fallen, Wanted, block_on};
pub(crate) use listener::{Listener, Stop};
pub(crate) use readiness::Readiness;
pub(crate) use socket::{
    Bell, Reader, SPARE, Shutter, Socket, Writer, connect, given_up, has_ended,
};
pub(crate) use splice::{Duct, End, Flow, Pipes};
pub(crate) use task::{Sleep, Task, caught, first, sleep, spawn, supervised, within};
pub(crate) use turn::{Chime, Share, Turns};
