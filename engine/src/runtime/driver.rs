//! The ladder of drivers: the fastest that this kernel, these limits and this build allow.
//!
//! Each step is built on the worker's own thread (a ring with one issuer belongs to the thread
//! that made it). Any error falls through to the next step; what fell is kept for the banner.

use std::future::Future;
use std::io;
use std::rc::Rc;

#[cfg(feature = "uring")]
use super::late::Late;
use super::polled::Polls;
use super::spawn;

/// How a worker waits for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// io_uring, completions run when the worker asks: `SINGLE_ISSUER | DEFER_TASKRUN` (6.1).
    UringDefer,
    /// io_uring, completions run at the next system call: `COOP_TASKRUN` (5.19).
    UringCoop,
    /// io_uring without flags (5.6).
    UringPlain,
    Epoll,
}

/// What the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    #[default]
    Auto,
    /// Any io_uring, with flags or without; no epoll.
    Uring,
    Only(Driver),
}

/// A step of the ladder that could not be had, and why.
#[derive(Clone, Debug)]
pub(crate) struct Fallen {
    pub(crate) driver: Driver,
    pub(crate) why: String,
}

impl Driver {
    /// Those that cost least come first. A ring without flags interrupts its worker for each thing
    /// that comes, and so costs more than epoll.
    pub(crate) const LADDER: [Self; 4] =
        [Self::UringDefer, Self::UringCoop, Self::Epoll, Self::UringPlain];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UringDefer => "io_uring",
            Self::UringCoop => "io_uring-coop",
            Self::UringPlain => "io_uring-plain",
            Self::Epoll => "epoll",
        }
    }
}

impl Wanted {
    /// The names that `--driver` takes.
    pub(crate) const NAMES: [&'static str; 6] =
        ["auto", "io_uring", "io_uring-defer", "io_uring-coop", "io_uring-plain", "epoll"];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "io_uring" => Self::Uring,
            "io_uring-defer" => Self::Only(Driver::UringDefer),
            "io_uring-coop" => Self::Only(Driver::UringCoop),
            "io_uring-plain" => Self::Only(Driver::UringPlain),
            "epoll" => Self::Only(Driver::Epoll),
            _ => return None,
        })
    }

    fn steps(self) -> impl Iterator<Item = Driver> {
        Driver::LADDER.into_iter().filter(move |driver| match self {
            Self::Auto => true,
            Self::Uring => *driver != Driver::Epoll,
            Self::Only(only) => only == *driver,
        })
    }
}

/// Build the best wanted driver on this thread and run `main` on it to its end. Never returns
/// before `main` does; the runtime is then dropped with whatever was still in flight, so a worker
/// calls this once in its life.
///
/// # Errors
/// Every step that was wanted, with the reason it could not be had.
pub(crate) fn block_on<F: Future>(
    wanted: Wanted,
    main: impl FnOnce(Driver, Vec<Fallen>) -> F,
) -> Result<F::Output, Vec<Fallen>> {
    let mut fallen = Vec::new();
    for driver in wanted.steps() {
        match build(driver) {
            Ok(Built::Epoll(mut runtime, polls)) => {
                return Ok(runtime.block_on(async {
                    let _reign = polls.reign();
                    drop(spawn(async move { polls.run().await }));
                    main(driver, fallen).await
                }));
            }
            #[cfg(feature = "uring")]
            Ok(Built::Uring(mut runtime, late)) => {
                return Ok(runtime.block_on(async {
                    let _reign = late.reign();
                    drop(spawn(async move { late.run().await }));
                    main(driver, fallen).await
                }));
            }
            Err(e) => fallen.push(Fallen { driver, why: e.to_string() }),
        }
    }
    Err(fallen)
}

/// Try each step of the ladder on this thread: for `doctor`.
pub fn available() -> Vec<(&'static str, io::Result<()>)> {
    Driver::LADDER.into_iter().map(|d| (d.name(), build(d).map(drop))).collect()
}

enum Built {
    #[cfg(feature = "uring")]
    Uring(monoio::Runtime<monoio::time::TimeDriver<monoio::IoUringDriver>>, Rc<Late>),
    Epoll(monoio::Runtime<monoio::time::TimeDriver<monoio::LegacyDriver>>, Rc<Polls>),
}

/// A ring of 1024 entries is charged 150 KiB to RLIMIT_MEMLOCK where the kernel still does so.
#[cfg(feature = "uring")]
const RING_ENTRIES: u32 = 1024;

/// Completions can outrun submissions: every connection may hold a read and a write.
#[cfg(feature = "uring")]
const COMPLETION_ENTRIES: u32 = 8192;

fn build(driver: Driver) -> io::Result<Built> {
    #[cfg(feature = "uring")]
    {
        let mut ring = io_uring::IoUring::builder();
        ring.setup_cqsize(COMPLETION_ENTRIES);
        match driver {
            Driver::UringDefer => {
                ring.setup_single_issuer().setup_defer_taskrun();
            }
            Driver::UringCoop => {
                ring.setup_coop_taskrun();
            }
            Driver::UringPlain => {}
            Driver::Epoll => return epoll(),
        }
        let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new()
            .with_entries(RING_ENTRIES)
            .uring_builder(ring)
            .enable_timer()
            .build()?;
        let late = runtime.block_on(async { Late::new() })?;
        Ok(Built::Uring(runtime, late))
    }
    #[cfg(not(feature = "uring"))]
    match driver {
        Driver::Epoll => epoll(),
        Driver::UringDefer | Driver::UringCoop | Driver::UringPlain => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this build has no io_uring"))
        }
    }
}

fn epoll() -> io::Result<Built> {
    let mut runtime =
        monoio::RuntimeBuilder::<monoio::LegacyDriver>::new().enable_timer().build()?;
    let polls = runtime.block_on(async { Polls::new() })?;
    Ok(Built::Epoll(runtime, polls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_driver() {
        for name in Wanted::NAMES {
            assert!(Wanted::parse(name).is_some(), "{name}");
        }
        assert_eq!(Wanted::parse("kqueue"), None);
    }

    #[test]
    fn epoll_comes_before_a_ring_without_flags_unless_a_ring_is_asked_for() {
        use Driver::{Epoll, UringCoop, UringDefer, UringPlain};
        for (wanted, expected) in [
            (Wanted::Auto, &[UringDefer, UringCoop, Epoll, UringPlain][..]),
            (Wanted::Uring, &[UringDefer, UringCoop, UringPlain]),
            (Wanted::Only(UringPlain), &[UringPlain]),
            (Wanted::Only(Epoll), &[Epoll]),
        ] {
            assert_eq!(wanted.steps().collect::<Vec<_>>(), expected, "{wanted:?}");
        }
    }

    #[test]
    fn epoll_is_always_there() {
        let ran = block_on(Wanted::Only(Driver::Epoll), |driver, _| async move { driver });
        assert_eq!(ran.unwrap(), Driver::Epoll);
    }
}
