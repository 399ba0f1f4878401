//! Answers questions about the running process, over TCP (loopback unless told otherwise) and over
//! the control socket. Changes nothing but by asking the control loop.

mod figures;
mod guard;
mod health;
pub(crate) mod reload;
pub(crate) mod status;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use crate::control::desk::Desk;
use crate::event::event;
use crate::exit::Failure;

/// Which way a question came in, which decides what may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// Mode 0600: whoever comes in is the process's own user, or root.
    Control,
    /// On a loopback address, which web pages in a local browser reach too.
    Loopback,
    Network,
}

/// What every handler gets.
#[derive(Clone, Debug)]
struct Room {
    desk: Arc<Desk>,
    door: Door,
}

/// # Errors
/// When the listener can't be registered with the control thread's runtime.
pub(crate) fn serve_control(desk: Arc<Desk>, listener: UnixListener) -> Result<(), Failure> {
    let listener = tokio::net::UnixListener::from_std(listener)
        .map_err(|e| Failure::io("control socket", &e))?;
    spawn(listener, router(Room { desk, door: Door::Control }));
    Ok(())
}

/// # Errors
/// When the listener can't be registered with the control thread's runtime.
pub(crate) fn serve_tcp(
    desk: Arc<Desk>,
    address: SocketAddr,
    listener: TcpListener,
) -> Result<(), Failure> {
    let door = if address.ip().is_loopback() { Door::Loopback } else { Door::Network };
    serve_app(listener, router(Room { desk, door }))
}

/// # Errors
/// When the listener can't be registered with the control thread's runtime.
pub(crate) fn serve_app(listener: TcpListener, app: Router) -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::from_std(listener)
        .map_err(|e| Failure::io("a listener of the control thread", &e))?;
    spawn(listener, app);
    Ok(())
}

fn spawn<L>(listener: L, app: Router)
where
    L: axum::serve::Listener,
    L::Addr: std::fmt::Debug,
{
    tokio::spawn(async move {
        if let Err(e) = axum::serve(listener, app).await {
            event!("admin_ended", why = e.to_string());
        }
    });
}

fn router(room: Room) -> Router {
    Router::new()
        .route("/health", get(health::alive))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(figures::metrics))
        .route("/v1/status", get(status::status))
        .route("/v1/latency", get(figures::latency))
        .route("/v1/config", get(status::config))
        .route("/v1/reload", post(reload::reload))
        .fallback(async || refuse(StatusCode::NOT_FOUND, "no such page"))
        .method_not_allowed_fallback(async || {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "not with this method")
        })
        .layer(from_fn_with_state(room.clone(), guard::guard))
        .with_state(room)
}

fn refuse(status: StatusCode, error: &str) -> Response {
    (status, axum::Json(json!({ "error": error }))).into_response()
}
