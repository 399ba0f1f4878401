//! What a request asks of the origin: size, delay and status, by query or by default.

use std::time::Duration;

use super::body::Framing;
use super::{HEAD_BYTES_MAX, HEADERS_MAX, Malformed, Said, decimal};

/// How a request wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub body_bytes: u64,
    pub delay: Duration,
    pub status: u16,
    /// From now on the origin has so many servers; the request itself waits for none.
    pub servers: Option<u32>,
}

/// A request head, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub wish: Wish,
    pub is_head: bool,
    pub keep_alive: bool,
    pub expects_continue: bool,
    /// How the end of the upload is told.
    pub upload: Framing,
}

/// Reads a head from the front of `bytes` and says how long it was; `None` until it is whole.
pub fn parse(bytes: &[u8], default: Wish) -> Result<Option<(Asked, usize)>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > HEAD_BYTES_MAX => {
            return Err(Malformed("a head without an end"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed("not a request head")),
    };
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(Malformed("not a request head"));
    };
    let said = Said::read(request.headers)?;
    let asked = Asked {
        wish: wish(target, default)?,
        is_head: method == "HEAD",
        keep_alive: said.persists(minor),
        expects_continue: said.expects_continue,
        upload: said.framing(Framing::Length(0)),
    };
    Ok(Some((asked, length)))
}

/// Unknown keys are ignored: a proxy under test may be sent any query.
fn wish(target: &str, default: Wish) -> Result<Wish, Malformed> {
    let mut wish = default;
    let query = target.split_once('?').map_or("", |(_, query)| query);
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match key {
            "size" => wish.body_bytes = within(value, BODY_BYTES_MAX)?,
            "delay_ms" => wish.delay = Duration::from_millis(within(value, DELAY_MS_MAX)?),
            "status" => wish.status = status(value)?,
            "servers" => wish.servers = Some(servers(value)?),
            _ => {}
        }
    }
    Ok(wish)
}

/// A final status: the origin never answers 1xx by wish.
fn status(value: &str) -> Result<u16, Malformed> {
    let status = u16::try_from(within(value, 599)?).unwrap_or(0);
    if status < 200 { Err(Malformed("a status outside 200 to 599")) } else { Ok(status) }
}

/// At least one: an origin of none would never answer again.
fn servers(value: &str) -> Result<u32, Malformed> {
    match u32::try_from(within(value, SERVERS_MAX)?) {
        Ok(0) | Err(_) => Err(Malformed("no servers at all")),
        Ok(count) => Ok(count),
    }
}

fn within(value: &str, max: u64) -> Result<u64, Malformed> {
    let number = decimal(value.as_bytes())?;
    if number > max { Err(Malformed("a number too large")) } else { Ok(number) }
}

/// 16 GiB: more than any test sends, little enough to end some day.
const BODY_BYTES_MAX: u64 = 16 << 30;
const DELAY_MS_MAX: u64 = 600_000;
/// More than connections that it takes.
const SERVERS_MAX: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Wish =
        Wish { body_bytes: 128, delay: Duration::ZERO, status: 200, servers: None };

    fn asked(target: &str) -> Result<Wish, Malformed> {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        parse(head.as_bytes(), DEFAULT).map(|found| found.unwrap().0.wish)
    }

    #[test]
    fn the_query_overrides_the_default_key_by_key() {
        let wish = |body_bytes, delay_ms, status| Wish {
            body_bytes,
            delay: Duration::from_millis(delay_ms),
            status,
            servers: None,
        };
        let cases = [
            ("/", wish(128, 0, 200)),
            ("/a?b", wish(128, 0, 200)),
            ("/?size=1024&delay_ms=20&status=503", wish(1024, 20, 503)),
            ("/?size=0&other=-1", wish(0, 0, 200)),
            ("/?size=1&size=2", wish(2, 0, 200)),
        ];
        for (target, expected) in cases {
            assert_eq!(asked(target), Ok(expected), "{target}");
        }
        assert_eq!(asked("/?servers=16"), Ok(Wish { servers: Some(16), ..DEFAULT }));
    }

    #[test]
    fn a_wish_out_of_bounds_is_refused() {
        for query in [
            "size=-1",
            "size=",
            "size=99999999999",
            "delay_ms=600001",
            "status=100",
            "status=600",
            "status=2e2",
            "servers=0",
            "servers=100001",
        ] {
            assert!(asked(&format!("/?{query}")).is_err(), "{query}");
        }
    }

    #[test]
    fn the_head_tells_framing_and_persistence() {
        let cases = [
            ("GET / HTTP/1.1\r\n\r\n", Framing::Length(0), true, false),
            ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", Framing::Length(0), false, false),
            ("GET / HTTP/1.0\r\n\r\n", Framing::Length(0), false, false),
            (
                "PUT / HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
                Framing::Length(9),
                true,
                true,
            ),
            ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Framing::Chunked, true, false),
        ];
        for (head, upload, keep_alive, expects) in cases {
            let (asked, length) = parse(head.as_bytes(), DEFAULT).unwrap().unwrap();
            assert_eq!(
                (asked.upload, asked.keep_alive, asked.expects_continue, length),
                (upload, keep_alive, expects, head.len()),
                "{head}"
            );
        }
    }

    #[test]
    fn half_a_head_is_waited_for_and_nonsense_is_not() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHo", DEFAULT), Ok(None));
        for text in [
            "GET /\r\n\r\n",
            "\x16\x03\x01",
            "PUT / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes(), DEFAULT).is_err(), "{text:?}");
        }
    }
}
