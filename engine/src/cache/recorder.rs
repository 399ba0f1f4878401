//! Writes a response down as it passes, without holding it up.

use std::time::{Duration, UNIX_EPOCH};

use sluice_policy::cache::{Heard, Keep, vary};
use sluice_policy::facts::{Field, Headers};
use sluice_policy::flight::Flight;
use sluice_policy::time::Now;

use super::{Cache, Stored};
use crate::http::fields::Kind;
use crate::http::parse::{Framing, ResponseHead};
use crate::upstream::response::Response;

/// A response on its way, written down so far. Dropped before its end, nothing is kept.
#[derive(Debug)]
pub(crate) struct Recorder<'c> {
    cache: &'c Cache,
    stored: Option<Stored>,
    /// Of the cache's memory, taken for what is written down.
    taken: usize,
}

impl<'c> Recorder<'c> {
    /// None: it is not to be kept.
    pub(crate) fn begin(
        cache: &'c Cache,
        flight: &Flight,
        asked: Headers<'_>,
        response: &Response,
        now: Now,
    ) -> Option<Box<Self>> {
        // Most routes keep nothing, and most responses need not be looked at.
        flight.route().filter(|route| route.keeps_responses())?;
        let (head, text) = (response.head(), response.text());
        let headers = Headers::new(text, &head.fields);
        let heard = Heard { status: head.status, headers, expires: expires(headers, now) };
        let keep = flight.keep(&heard)?;
        let length = match response.framing() {
            Framing::None => 0,
            Framing::Length(length) => length,
            Framing::Chunked => 0,
            // It may have broken off, and nobody could tell.
            Framing::Close => return None,
        };
        if length > keep.body_bytes_max {
            return None;
        }
        let names = vary(headers).map(|name| name.to_ascii_lowercase().into());
        let vary: Box<[Box<[u8]>]> = names.collect();
        let variant = keep.key.variant(vary.iter().map(AsRef::as_ref), asked);
        let (text, head) = copied(text, head);
        let stored = Stored { keep, text, head, body: Vec::new(), vary, variant, since: now.at };
        let mut recorder = Self { cache, stored: None, taken: 0 };
        let size = stored.size();
        recorder.stored = Some(stored);
        let here = usize::try_from(length).ok()?;
        recorder.take(size)?;
        recorder.take(here)?;
        if let Some(stored) = &mut recorder.stored {
            stored.body.reserve_exact(here);
        }
        Some(Box::new(recorder))
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        if self.cache.reserve(bytes) {
            self.taken += bytes;
            return Some(());
        }
        self.stored = None;
        None
    }

    /// The next piece of the body. When it grows too long, it is not kept after all.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        let Some(Stored { keep: Keep { body_bytes_max, .. }, body, .. }) = &self.stored else {
            return;
        };
        let long = body.len() + piece.len();
        if long as u64 > *body_bytes_max {
            self.stored = None;
            return;
        }
        let (was, mut more) = (body.capacity(), 0);
        if long > was {
            more = long.max(was * 2).max(CHUNK) - was;
        }
        if more > 0 && self.take(more).is_none() {
            return;
        }
        if let Some(stored) = &mut self.stored {
            if more > 0 {
                stored.body.reserve_exact(was + more - stored.body.len());
            }
            stored.body.extend_from_slice(piece);
        }
    }

    /// It came whole.
    pub(super) fn finish(mut self) -> Option<Stored> {
        let mut stored = self.stored.take()?;
        stored.body.shrink_to_fit();
        stored.head.framing = Framing::Length(stored.body.len() as u64);
        Some(stored)
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        self.cache.give_back(self.taken);
    }
}

/// A body of unknown length takes this much at first.
const CHUNK: usize = 4 * 1024;

/// The head without what is written anew for each answer, or is between neighbours only.
fn copied(text: &[u8], head: &ResponseHead) -> (Vec<u8>, ResponseHead) {
    let slice = |(from, to): (u32, u32)| text.get(from as usize..to as usize).unwrap_or_default();
    let mut out = Vec::with_capacity(text.len().min(HEAD_USUAL));
    let mut put = |bytes: &[u8], end: &[u8]| {
        let from = out.len();
        out.extend_from_slice(bytes);
        let at = (offset(from), offset(out.len()));
        out.extend_from_slice(end);
        at
    };
    let reason = put(slice(head.reason), b"\r\n");
    let mut copy = ResponseHead {
        status: head.status,
        reason,
        has_date: head.has_date,
        keep_alive: true,
        ..ResponseHead::default()
    };
    for (kind, field) in head.kinds.iter().zip(&head.fields) {
        let name = slice(field.name);
        let anew = ANEW.iter().any(|anew| name.eq_ignore_ascii_case(anew));
        if !anew && matches!(kind, Kind::Plain | Kind::Date) {
            let name = put(name, b": ");
            let value = put(slice(field.value), b"\r\n");
            copy.fields.push(Field { name, value });
            copy.kinds.push(*kind);
        }
    }
    copy.fields_end = offset(out.len());
    copy.fields.shrink_to_fit();
    copy.kinds.shrink_to_fit();
    out.shrink_to_fit();
    (out, copy)
}

const HEAD_USUAL: usize = 1024;

const ANEW: [&[u8]; 4] = [b"age", b"content-length", b"trailer", b"x-degraded"];

fn offset(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// From `Date` to `Expires`; zero when that is past or no date (RFC 9111 section 5.3).
fn expires(headers: Headers<'_>, now: Now) -> Option<Duration> {
    let date = |value: &[u8]| httpdate::parse_http_date(str::from_utf8(value).ok()?.trim()).ok();
    let expires = headers.get("expires")?;
    let from = headers.get("date").and_then(date);
    let from = from.unwrap_or_else(|| UNIX_EPOCH + Duration::from_secs(now.wall.0));
    let span = date(expires).and_then(|expires| expires.duration_since(from).ok());
    Some(span.unwrap_or_default())
}
