//! Answers from what was kept.

use std::rc::Rc;

use super::Connection;
use super::exchange::connection_option;
use crate::cache::{Found, Stored};
use crate::http::head::{Head, Version};
use crate::http::parse::{Framing, ResponseHead};
use crate::http::write::{self, ResponseExtras};
use crate::http::{Exchange as _, Sent, Told};
use crate::runtime::Share;
use sluice_policy::facts::Field;
use sluice_policy::flight::Finish;

impl Connection {
    pub(super) async fn serve_kept(&mut self, found: &Found, told: Told<'_>) -> Sent {
        let stored = &*found.stored;
        self.let_go();
        let stays = self.can_stay();
        self.closing |= !stays;
        let old = self.head.version == Version::Http10;
        let date = self.worker.date();
        let extras = ResponseExtras {
            chunked: false,
            connection: connection_option(stays, old),
            request_id: self.passport().request_id(&self.head),
            limits: told.flight.map(|flight| (flight, &self.current.limit_forms)),
            date: &date,
            edit: told.edit,
        };
        let unchanged = !found.degraded && is_unchanged(&self.head, stored);
        let status = if unchanged { 304 } else { stored.head.status };
        let head = ResponseHead {
            status,
            reason: if unchanged { (0, 0) } else { stored.head.reason },
            fields: stored.head.fields.clone(),
            kinds: stored.head.kinds.clone(),
            framing: Framing::None,
            keep_alive: true,
            has_date: stored.head.has_date,
            line_at: None,
            fields_end: stored.head.fields_end,
        };
        let mut out = self.worker.buffers.small();
        // RFC 9110 section 15.4.5: a 304 does not describe what it does not bring.
        let wanted = |field: &Field| {
            let (from, to) = field.name;
            let name = stored.text.get(from as usize..to as usize).unwrap_or_default();
            let about = name.get(..8).is_some_and(|name| name.eq_ignore_ascii_case(b"content-"));
            !unchanged || !about || name.eq_ignore_ascii_case(b"content-location")
        };
        let bodiless = unchanged || status == 204 || self.head.method() == "HEAD";
        let body = if bodiless { &[][..] } else { &stored.body };
        let mut digits = itoa::Buffer::new();
        write::response_with(&mut out, &stored.text, &head, &extras, wanted, |out| {
            if !unchanged && status != 204 {
                write::field(out, b"Content-Length", digits.format(stored.body.len()).as_bytes());
            }
            let age = found.age.as_secs();
            write::field(out, b"Age", digits.format(age).as_bytes());
            if found.degraded {
                write::field(out, b"x-degraded", format!("stale;age={age}").as_bytes());
            }
        });
        let (now, mut rest) = body.split_at(body.len().min(out.capacity() - out.len()));
        out.extend_from_slice(now);
        let mut sent = self.send(out).await;
        let worker = Rc::clone(&self.worker);
        let mut share = Share::default();
        while sent && !rest.is_empty() {
            let mut out = self.worker.buffers.large();
            let (now, after) = rest.split_at(rest.len().min(out.capacity()));
            out.extend_from_slice(now);
            rest = after;
            sent = self.send(out).await;
            share.spend(&worker.turns, now.len() as u64).await;
        }
        if sent {
            Sent { status: Some(status), bytes: body.len() as u64, finish: Finish::Whole }
        } else {
            self.closing = true;
            Sent::GONE
        }
    }
}

/// Whether the client has this response already (RFC 9110 section 13.2.2).
fn is_unchanged(request: &Head, stored: &Stored) -> bool {
    let asked = request.headers();
    let kept = sluice_policy::facts::Headers::new(&stored.text, &stored.head.fields);
    if stored.head.status != 200 {
        return false;
    }
    if asked.get("if-none-match").is_some() {
        let bare = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
        let Some(tag) = kept.get("etag").map(bare) else { return false };
        let tags = asked.all("if-none-match").flat_map(|tags| tags.split(|b| *b == b','));
        return tags.map(<[u8]>::trim_ascii).any(|one| bare(one) == tag);
    }
    let date = |value: &[u8]| httpdate::parse_http_date(str::from_utf8(value).ok()?.trim()).ok();
    let since = asked.get("if-modified-since").and_then(date);
    let changed = kept.get("last-modified").and_then(date);
    matches!((since, changed), (Some(since), Some(changed)) if changed <= since)
}
