//! Asks the running process, by its control socket.

use std::fmt::Write as _;
use std::io;
use std::io::IsTerminal as _;
use std::path::Path;

use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{json as pretty, print};
use crate::admin::overload::AdaptiveStatus;
use crate::admin::reload::Reloaded;
use crate::admin::status::{EndpointStatus, Status};
use crate::control::socket;
use crate::exit::{Exit, Failure};

pub(super) fn reload(control: Option<&Path>) -> Result<Exit, Failure> {
    let (status, reloaded): (u16, Reloaded) = ask(control, "POST", "/v1/reload")?;
    match (reloaded.number, reloaded.error) {
        (Some(number), _) => print(&format!("reloaded: version {number}\n")),
        (None, why) => {
            let exit = if status == 422 { Exit::Configuration } else { Exit::Failed };
            let text = why.unwrap_or_else(|| format!("status {status}"));
            Err(Failure::new(exit, format!("{text}\nrefused: the old configuration serves on")))
        }
    }
}

pub(super) fn status(control: Option<&Path>, json: bool) -> Result<Exit, Failure> {
    let (_, status): (u16, Status) = ask(control, "GET", "/v1/status")?;
    if json || !io::stdout().is_terminal() {
        return print(&pretty(&status)?);
    }
    print(&text(&status))
}

fn text(status: &Status) -> String {
    let config = &status.config;
    let mut text = format!(
        "sluice {} {} (pid {}, since {})\nconfig {} (version {}, since {})\n",
        status.version,
        status.phase,
        status.pid,
        status.started,
        config.source,
        config.number,
        config.adopted
    );
    if let Some(refused) = &config.refused {
        let _ = writeln!(text, "last reload refused at {}:\n{}", refused.at, refused.why);
    }
    if let Some(driver) = &status.driver {
        let _ = writeln!(text, "driver {}", driver.name);
    }
    for listener in &status.listeners {
        let _ = writeln!(text, "listening on {listener}");
    }
    if let Some(admin) = &status.admin {
        let _ = writeln!(text, "admin on {admin}");
    }
    let _ = writeln!(
        text,
        "{} connections, {} requests in flight, {} ended, {} worker restarts\n",
        status.connections, status.in_flight, status.requests, status.worker_restarts
    );
    let _ = writeln!(text, "worker  cpu  state     connections  in flight      requests");
    for worker in &status.workers {
        let cpu = worker.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
        let _ = writeln!(
            text,
            "{:6}  {cpu:>3}  {:8}  {:11}  {:9}  {:12}",
            worker.worker, worker.state, worker.connections, worker.in_flight, worker.requests
        );
    }
    for endpoint in &status.upstreams {
        let EndpointStatus { upstream, server, in_flight, why, .. } = endpoint;
        let why = why.as_ref().map_or_else(String::new, |why| format!(", {why}"));
        let _ = writeln!(text, "upstream {upstream}: {server}: {in_flight} in flight{why}");
    }
    for gate in &status.overload.adaptive {
        let AdaptiveStatus { upstream, limit, in_flight, reason, .. } = gate;
        let _ = writeln!(text, "adaptive {upstream}: {in_flight} of {limit} ({reason})");
    }
    text
}

/// Ask, and read the answer as what it must be.
pub(super) fn ask<T: DeserializeOwned>(
    control: Option<&Path>,
    method: &str,
    path: &str,
) -> Result<(u16, T), Failure> {
    let socket = socket::find(control);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::io("the command could not be set up", &e))?;
    let (status, body) = runtime.block_on(exchange(&socket, method, path))?;
    match serde_json::from_slice(&body) {
        Ok(answer) => Ok((status, answer)),
        Err(e) => {
            let text = format!("{}: not an answer of this version: {e}", socket.display());
            Err(Failure::new(Exit::Failed, text))
        }
    }
}

async fn exchange(socket: &Path, method: &str, path: &str) -> Result<(u16, Bytes), Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|e| {
        let asked = socket.display();
        Failure::io(format_args!("no sluice answers on {asked} (see --control)"), &e)
    })?;
    let broken = |e: &dyn std::error::Error| {
        Failure::new(Exit::Failed, format!("{}: {e}", socket.display()))
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|e| broken(&e))?;
    let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|e| broken(&e))?;
    Ok((status, body.to_bytes()))
}
