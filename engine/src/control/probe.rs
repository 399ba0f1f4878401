//! Asks a server how it is.

use std::io;
use std::net::SocketAddr;

use sluice_policy::health::{Probe, Sign};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A server that is well says so in less.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const FIELDS_MAX: usize = 128;

/// Ends by itself, within the probe's time.
pub(crate) async fn ask(addresses: &[SocketAddr], probe: &Probe) -> Sign {
    let sign = tokio::time::timeout(probe.timeout, asked(addresses, probe)).await;
    sign.unwrap_or(Sign::TimedOut)
}

async fn asked(addresses: &[SocketAddr], probe: &Probe) -> Sign {
    let mut last = Sign::Unreachable;
    for address in addresses {
        match (TcpStream::connect(address).await, &probe.path) {
            (Ok(_), None) => return Sign::Well,
            (Ok(stream), Some(path)) => {
                return http(stream, path, &probe.host).await.unwrap_or(Sign::Closed);
            }
            (Err(e), _) => last = unconnected(&e),
        }
    }
    last
}

fn unconnected(error: &io::Error) -> Sign {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Sign::Refused,
        io::ErrorKind::TimedOut => Sign::TimedOut,
        _ => Sign::Unreachable,
    }
}

async fn http(mut stream: TcpStream, path: &str, host: &str) -> io::Result<Sign> {
    let version = env!("CARGO_PKG_VERSION");
    let question = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sluice-health/{version}\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(question.as_bytes()).await?;
    let mut head = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(Sign::Closed);
        }
        match judge(&mut head) {
            Some(sign) => return Ok(sign),
            None if head.len() > HEAD_BYTES_MAX => return Ok(Sign::Malformed),
            None => {}
        }
    }
}

/// None: the head has not come whole. Interim heads are taken off the front.
fn judge(head: &mut Vec<u8>) -> Option<Sign> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let end = match response.parse(head) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => return None,
            Err(_) => return Some(Sign::Malformed),
        };
        match response.code {
            Some(100..=199) => drop(head.drain(..end)),
            Some(200..=399) => return Some(Sign::Well),
            Some(status) => return Some(Sign::Status(status)),
            None => return Some(Sign::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_judged_when_it_is_whole() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Some(Sign::Well)),
            ("HTTP/1.0 302 Found\r\nLocation: /\r\n\r\nbody", Some(Sign::Well)),
            ("HTTP/1.1 404 Not Found\r\n\r\n", Some(Sign::Status(404))),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\n\r\n", Some(Sign::Status(503))),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
            ("HTTP/1.1 200 OK\r\nA: b\r\n", None),
            ("HT", None),
            ("SSH-2.0-OpenSSH_9.2\r\n", Some(Sign::Malformed)),
            ("\u{0}\u{1}garbage", Some(Sign::Malformed)),
        ] {
            assert_eq!(judge(&mut head.as_bytes().to_vec()), expected, "{head:?}");
        }
    }
}
