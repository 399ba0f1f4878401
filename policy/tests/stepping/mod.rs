//! Workers that interrupt each other at every step. A step is a look at an atomic word; in the
//! tests of the ledger its words are these.
//!
//! All on one thread: the one that interrupts runs to its end inside the step of the other, and
//! may be interrupted there itself. One that finds a place changing hands therefore gives up, as
//! it does when the other has been suspended for long.

use core::sync::atomic::{self, Ordering};
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) use core::hint::spin_loop;

/// A word. Each look at it is a step.
#[derive(Debug, Default)]
pub(crate) struct AtomicU64(atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        step();
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        step();
        self.0.store(value, order);
    }

    pub(crate) fn compare_exchange(
        &self,
        value: u64,
        next: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        step();
        self.0.compare_exchange(value, next, success, failure)
    }

    pub(crate) fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        step();
        self.0.fetch_update(success, failure, change)
    }
}

/// Has three acts done, each as the one that is interrupted, the others at every pair of steps, in
/// a new world each time, which is judged afterwards. How many times that was.
pub(crate) fn interleave<W: 'static>(
    world: impl Fn() -> W,
    acts: [fn(&W); 3],
    judge: impl Fn(&W),
) -> u64 {
    let mut runs = 0;
    for first in 0..acts.len() {
        let mut acts = acts;
        acts.rotate_left(first);
        let mut run = |at| {
            runs += 1;
            let world = Rc::new(world());
            let steps = once(&world, acts, at);
            judge(&world);
            steps
        };
        for early in 1.. {
            let mut steps = u64::MAX;
            for late in early.. {
                if late > steps {
                    break;
                }
                steps = run([early, late]);
            }
            if early > steps {
                break;
            }
        }
    }
    runs
}

type Act = Box<dyn FnOnce()>;

/// What is to happen at which step, the next last.
struct Turns {
    steps: u64,
    due: Vec<(u64, Act)>,
}

thread_local! {
    static TURNS: RefCell<Option<Turns>> = const { RefCell::new(None) };
}

/// Not while another step is judged: only acts are counted and interrupted.
fn step() {
    let due = TURNS.with_borrow_mut(|turns| {
        let Turns { steps, due } = turns.as_mut()?;
        *steps += 1;
        due.pop_if(|(at, _)| *at <= *steps)
    });
    if let Some((_, act)) = due {
        act();
    }
}

/// How many steps they took together.
fn once<W: 'static>(world: &Rc<W>, [first, second, third]: [fn(&W); 3], at: [u64; 2]) -> u64 {
    let act = |act: fn(&W)| {
        let world = Rc::clone(world);
        Box::new(move || act(&world)) as Act
    };
    let due = vec![(at[1], act(third)), (at[0], act(second))];
    TURNS.set(Some(Turns { steps: 0, due }));
    first(world);
    let Turns { steps, due } = TURNS.take().expect("set above");
    // Whose turn did not come has it now, uninterrupted.
    due.into_iter().rev().for_each(|(_, act)| act());
    steps
}
