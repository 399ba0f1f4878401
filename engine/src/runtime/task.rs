//! Tasks and timers of one worker.

use std::future::Future;
use std::pin::Pin;
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

/// The worker's timer has a grain of one millisecond.
pub(crate) async fn sleep(span: Duration) {
    monoio::time::sleep(span).await;
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx)
    }
}
