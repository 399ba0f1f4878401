//! Tasks and timers of one worker.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// A task of this worker. Dropping the handle lets the task run on.
pub(crate) struct Task<T>(monoio::task::JoinHandle<T>);

/// Run this on the calling worker, beside everything else it does.
pub(crate) fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
{
    Task(monoio::spawn(future))
}

/// Run this on the calling worker and catch its panic: a panic that reached the runtime would end
/// every connection of the worker.
pub(crate) fn supervised<F>(future: F) -> Task<Result<F::Output, String>>
where
    F: Future + 'static,
{
    spawn(caught(Box::pin(future)))
}

/// `future`, with what a panic of it said instead of the panic. In a box already: a task is moved
/// four times before it begins.
pub(crate) fn caught<F: Future>(
    future: Pin<Box<F>>,
) -> impl Future<Output = Result<F::Output, String>> {
    Caught { future }
}

struct Caught<F> {
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // What a panicking task leaves behind is its own: the connection is closed with it, and
        // what workers share is borrowed for one call at a time.
        let polled = AssertUnwindSafe(|| self.future.as_mut().poll(cx));
        match std::panic::catch_unwind(polled) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(said(&*panic))),
        }
    }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// The output of whichever ends first; the others run on.
pub(crate) async fn first<T>(mut tasks: Vec<Task<T>>) -> T {
    poll_fn(|cx| {
        for task in &mut tasks {
            if let Poll::Ready(output) = Pin::new(task).poll(cx) {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// A wait for a moment. In a box: it is large, and whoever may have to wait rarely does.
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// The worker's timer has a grain of one millisecond.
pub(crate) fn sleep(span: Duration) -> Sleep {
    Box::pin(monoio::time::sleep(span))
}

/// Wait for `future` no longer than `span`; None when the time was up. The future is dropped then,
/// so it must be one that can be: a borrowed [`Task`], or a wait that holds no operation.
pub(crate) async fn within<F: Future>(span: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    // What is ready already needs no timer.
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        timer.get_or_insert_with(|| sleep(span)).as_mut().poll(cx).map(|()| None)
    })
    .await
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx)
    }
}
