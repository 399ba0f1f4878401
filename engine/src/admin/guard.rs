//! Who may ask what.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq as _;

use super::{Door, Room, refuse};
use crate::control::source::Token;

/// A page on the web can't set this without the browser asking us first, and we don't answer such
/// questions.
const CUSTOM: &str = "x-sluice";

/// Stands before every page.
pub(super) async fn guard(State(room): State<Room>, request: Request, next: Next) -> Response {
    let mut response = if room.door == Door::Loopback && !names_loopback(request.headers()) {
        refuse(StatusCode::FORBIDDEN, "the Host is not this machine's loopback")
    } else {
        next.run(request).await
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the caller may change something.
pub(super) fn may_change(
    room: &Room,
    headers: &HeaderMap,
) -> Result<(), (StatusCode, &'static str)> {
    match room.door {
        Door::Control => Ok(()),
        Door::Loopback | Door::Network => {
            let token = room.desk.standing().token.clone();
            shows(token.as_ref(), headers)
        }
    }
}

fn shows(token: Option<&Token>, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    let Some(token) = token else {
        return Err((StatusCode::FORBIDDEN, "read only: admin.token is not set"));
    };
    if headers.get(CUSTOM).is_none_or(|value| value != "1") {
        return Err((StatusCode::FORBIDDEN, "a change needs the header \"x-sluice: 1\""));
    }
    let shown = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    // Their lengths may differ in time; their bytes may not.
    match shown {
        Some(shown) if bool::from(shown.ct_eq(&token.0)) => Ok(()),
        Some(_) | None => Err((StatusCode::UNAUTHORIZED, "a change needs the admin token")),
    }
}

/// The scheme's name is case-insensitive (RFC 9110 section 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// A name that points at 127.0.0.1 lets a web page of that name talk to us from the browser of
/// whoever looks at it ("DNS rebinding"). Its requests still carry its name.
fn names_loopback(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn only_the_loopback_has_a_name_here() {
        for (host, expected) in [
            ("localhost", true),
            ("LocalHost:9901", true),
            ("127.0.0.1:9901", true),
            ("127.8.8.8", true),
            ("[::1]:9901", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            assert_eq!(names_loopback(&headers(&[("host", host)])), expected, "{host}");
        }
        assert!(!names_loopback(&headers(&[])));
        assert!(!names_loopback(&headers(&[("host", "localhost"), ("host", "evil.example")])));
    }

    #[test]
    fn a_change_needs_the_token_and_the_header() {
        let token = Token(b"sesame".to_vec());
        for (token, fields, expected) in [
            (None, vec![("x-sluice", "1"), ("authorization", "Bearer sesame")], Some(403)),
            (Some(&token), vec![("authorization", "Bearer sesame")], Some(403)),
            (Some(&token), vec![("x-sluice", "0"), ("authorization", "Bearer sesame")], Some(403)),
            (Some(&token), vec![("x-sluice", "1")], Some(401)),
            (Some(&token), vec![("x-sluice", "1"), ("authorization", "Bearer sesam")], Some(401)),
            (Some(&token), vec![("x-sluice", "1"), ("authorization", "Bearer ")], Some(401)),
            (Some(&token), vec![("x-sluice", "1"), ("authorization", "Basic sesame")], Some(401)),
            (Some(&token), vec![("x-sluice", "1"), ("authorization", "bearer sesame")], None),
        ] {
            let refused = shows(token, &headers(&fields)).err();
            assert_eq!(refused.map(|(status, _)| status.as_u16()), expected, "{fields:?}");
        }
    }
}
