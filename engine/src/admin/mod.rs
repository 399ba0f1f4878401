//! Answers questions about the running process, over TCP (loopback unless told otherwise) and over
//! the control socket. Changes nothing but by asking the control loop.

mod breakers;
mod caches;
mod figures;
mod guard;
mod health;
mod limits;
pub(crate) mod overload;
mod overrides;
pub(crate) mod reload;
pub(crate) mod status;
pub(crate) mod switches;
mod top;

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

impl Door {
    /// By whom a change was made, as far as is known.
    const fn name(self) -> &'static str {
        match self {
            Self::Control => "control socket",
            Self::Loopback | Self::Network => "admin token",
        }
    }
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
        .route("/v1/limits", get(limits::limits))
        .route("/v1/limits/override", post(overrides::set))
        .route("/v1/limits/top", get(top::top))
        .route("/v1/reload", post(reload::reload))
        .route("/v1/breakers", get(breakers::list).post(breakers::force))
        .route("/v1/cache", get(caches::list).post(caches::purge))
        .route("/v1/switches", get(switches::list).post(switches::switch))
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::control::fixture::{desk, fleet, obedient};

    /// Serves until the test ends.
    async fn admin(door: Door) -> SocketAddr {
        let (fleet, _heard) = fleet(1, obedient).await;
        let (desk, mut asked) = desk(fleet);
        tokio::spawn(async move {
            while let Some(crate::control::desk::Ask::Reload(tell)) = asked.recv().await {
                tell.send(Err(Failure::new(crate::exit::Exit::Configuration, "no"))).unwrap();
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn(listener, router(Room { desk: Arc::new(desk), door }));
        address
    }

    async fn ask(address: SocketAddr, request: &str, host: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.to_ascii_lowercase()
    }

    #[tokio::test]
    async fn every_page_answers_and_nothing_is_stored() {
        let address = admin(Door::Loopback).await;
        for (request, host, status) in [
            ("GET /health", "localhost", 200),
            ("GET /health/ready", "localhost", 503),
            ("GET /metrics", "127.0.0.1:9901", 200),
            ("GET /v1/status", "localhost", 200),
            ("GET /v1/latency", "localhost", 200),
            ("GET /v1/config", "localhost", 200),
            ("GET /v1/breakers", "localhost", 200),
            ("GET /v1/switches", "localhost", 200),
            ("GET /v1/cache", "localhost", 200),
            ("POST /v1/cache", "localhost", 403),
            ("POST /v1/switches?kind=survival&state=on", "localhost", 403),
            ("GET /v1/limits", "localhost", 200),
            ("POST /v1/limits/override?limit=a&key=b", "localhost", 403),
            ("GET /v1/limits/top", "localhost", 200),
            ("GET /nowhere", "localhost", 404),
            ("DELETE /v1/status", "localhost", 405),
            ("GET /v1/reload", "localhost", 405),
            ("POST /v1/reload", "localhost", 403),
            ("GET /health", "evil.example", 403),
            ("GET /nowhere", "evil.example", 403),
        ] {
            let answer = ask(address, request, host).await;
            assert!(
                answer.starts_with(&format!("http/1.1 {status}")),
                "{request} {host}: {answer}"
            );
            assert!(answer.contains("\r\ncache-control: no-store\r\n"), "{request}: {answer}");
            let json = answer.contains("\r\ncontent-type: application/json\r\n");
            assert_eq!(json, request != "GET /metrics", "{request}: {answer}");
        }
    }

    #[tokio::test]
    async fn the_control_socket_asks_for_no_token() {
        let address = admin(Door::Control).await;
        let answer = ask(address, "POST /v1/reload", "anything").await;
        assert!(answer.starts_with("http/1.1 422"), "{answer}");
        assert!(answer.ends_with(r#"{"error":"no"}"#), "{answer}");
    }
}
