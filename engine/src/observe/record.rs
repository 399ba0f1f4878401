//! Access log lines: one JSON object each, formatted by the worker after the response has gone,
//! gathered and handed over in blocks.

use std::net::IpAddr;
use std::time::Duration;

use sluice_config::{AccessLog, Hide, LogTarget};
use sluice_policy::flight::{Finish, Record};

use super::cells::Cells;
use super::journal::{Block, JournalSender};
use crate::clock;
use crate::http::forward::write_address;
use crate::http::head::Head;
use crate::http::write::Passport;

/// A worker's lines that have not been handed over yet.
#[derive(Debug)]
pub(crate) struct Lines {
    journal: JournalSender,
    buffer: Vec<u8>,
    count: u32,
}

/// A head that was refused before policy saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal<'a> {
    pub(crate) peer: IpAddr,
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) request_id: &'a [u8],
    pub(crate) bytes: u64,
}

/// A block is handed over when it is this full, or at the next tick.
const BLOCK_BYTES: usize = 64 * 1024;

/// Longer values are cut: a log line is for reading.
const VALUE_BYTES_MAX: usize = 2048;

impl Lines {
    pub(crate) fn new(journal: JournalSender) -> Self {
        Self { journal, buffer: Vec::new(), count: 0 }
    }

    /// Write a line about this request, if the sample has it. `dice` is drawn for it.
    #[expect(clippy::too_many_arguments, reason = "each is a different thing that the line tells")]
    pub(crate) fn record(
        &mut self,
        log: &AccessLog,
        cells: &Cells,
        dice: u64,
        at: Duration,
        record: &Record,
        head: &Head,
        passport: &Passport,
    ) {
        if log.to == LogTarget::Off {
            return;
        }
        let failed = record.ending.status.is_none_or(|status| status >= 500)
            || record.ending.finish != Finish::Whole
            || record
                .answer
                .is_some_and(|answer| answer.reply.is_none() || answer.degraded.is_some());
        let slow = log.slow.is_some_and(|slow| record.took >= slow);
        let share = match (failed, slow) {
            (true, _) => log.sample_errors.0,
            (false, true) => WHOLE,
            (false, false) => log.sample_ok.0,
        };
        if !sampled(share, dice) {
            return;
        }
        let mut line = Line::begin(&mut self.buffer, at);
        line.passport(head, passport);
        line.request(log, head);
        line.outcome(record);
        line.timings(record);
        line.number("weight", weight(share));
        line.end();
        self.written(cells);
    }

    pub(crate) fn refusal(
        &mut self,
        log: &AccessLog,
        cells: &Cells,
        dice: u64,
        at: Duration,
        refusal: &Refusal<'_>,
    ) {
        if log.to == LogTarget::Off || !sampled(log.sample_errors.0, dice) {
            return;
        }
        let mut line = Line::begin(&mut self.buffer, at);
        line.text("request_id", refusal.request_id);
        line.address("client", refusal.peer.to_canonical());
        line.number("status", u64::from(refusal.status));
        line.text("code", refusal.code.as_bytes());
        line.number("bytes_out", refusal.bytes);
        line.number("weight", weight(log.sample_errors.0));
        line.end();
        self.written(cells);
    }

    fn written(&mut self, cells: &Cells) {
        self.count += 1;
        if self.buffer.len() >= BLOCK_BYTES {
            self.flush(cells);
        }
    }

    /// Hand over what there is. Never waits: a writer that is behind costs lines, counted.
    pub(crate) fn flush(&mut self, cells: &Cells) {
        if self.count == 0 {
            return;
        }
        let bytes = std::mem::replace(&mut self.buffer, self.journal.buffer());
        let lines = std::mem::take(&mut self.count);
        match self.journal.send(Block { bytes, lines }) {
            Ok(()) => cells.log_lines.add(u64::from(lines)),
            Err(_) => cells.log_dropped.add(u64::from(lines)),
        }
    }
}

const WHOLE: u32 = PARTS;

/// A ratio counts in parts per million.
const PARTS: u32 = 1_000_000;

fn sampled(share: u32, dice: u64) -> bool {
    dice % u64::from(PARTS) < u64::from(share)
}

/// How many requests the line stands for.
fn weight(share: u32) -> u64 {
    u64::from(PARTS / share.clamp(1, PARTS))
}

/// A JSON object being written on one line.
struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Line<'a> {
    fn begin(out: &'a mut Vec<u8>, at: Duration) -> Self {
        out.extend_from_slice(b"{\"ts\":\"");
        out.extend_from_slice(clock::rfc3339(at).as_bytes());
        out.push(b'"');
        Self { out }
    }

    fn end(self) {
        self.out.extend_from_slice(b"}\n");
    }

    fn key(&mut self, key: &str) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    fn address(&mut self, key: &str, address: IpAddr) {
        self.key(key);
        self.out.push(b'"');
        write_address(self.out, address);
        self.out.push(b'"');
    }

    /// Any bytes, as a JSON string.
    fn text(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        write_text(self.out, value);
    }

    fn passport(&mut self, head: &Head, passport: &Passport) {
        self.text("request_id", passport.request_id(head));
        self.text("trace_id", passport.trace.trace_id());
        self.text("span_id", passport.trace.parent_id());
        self.address("client", passport.client);
        if passport.peer.to_canonical() != passport.client {
            self.address("peer", passport.peer.to_canonical());
        }
    }

    fn request(&mut self, log: &AccessLog, head: &Head) {
        self.text("method", head.method().as_bytes());
        self.text("host", head.host.as_bytes());
        self.text("path", head.path().as_bytes());
        if !head.query().is_empty() {
            self.key("query");
            let query = hide_query(head.query(), &log.hide);
            write_text(self.out, query.as_bytes());
        }
        if let Some(agent) = head.user_agent {
            let hidden = log.hide.iter().any(|hide| match hide {
                Hide::Header(name) => name.eq_ignore_ascii_case("user-agent"),
                Hide::Query(_) => false,
            });
            self.text("user_agent", if hidden { b"***" } else { head.bytes(agent) });
        }
    }

    fn outcome(&mut self, record: &Record) {
        let plan = record.plan();
        if let Some(route) = record.route.and_then(|id| plan.route(id)) {
            self.text("route", route.name.as_bytes());
        }
        if let Some(upstream) = record.upstream.and_then(|id| plan.upstream(id)) {
            self.text("upstream", upstream.name.as_bytes());
            let endpoint = upstream.endpoints.iter().find(|e| Some(e.key) == record.endpoint);
            if let Some(endpoint) = endpoint {
                self.text("endpoint", endpoint.address.as_bytes());
            }
        }
        self.number("attempts", u64::from(record.attempts));
        if record.cut > 0 {
            self.number("cut", u64::from(record.cut));
        }
        if let Some(hedge) = record.hedged() {
            self.text("hedge", hedge.as_bytes());
        }
        if let Some(answer) = record.answer {
            self.text("code", answer.code.as_bytes());
            if let Some(source) = answer.degraded {
                self.text("degraded", source.name().as_bytes());
            }
        }
        if let Some(used) = record.cache {
            self.text("cache", used.name().as_bytes());
        }
        if let Some(step) = record.trail.steps().find(|s| !s.passed && s.filter != "shadow") {
            self.text("decided", step.filter.as_bytes());
            if let Some(limit) = record.violated {
                self.text("limit", plan.limit_name(limit).as_bytes());
            }
        }
        if let Some(status) = record.ending.status {
            self.number("status", u64::from(status));
        }
        let finish: &[u8] = match record.ending.finish {
            Finish::Whole => return,
            Finish::ClientGone => b"client_gone",
            Finish::UpstreamCut => b"upstream_cut",
            Finish::Fault => b"fault",
        };
        self.text("finish", finish);
    }

    fn timings(&mut self, record: &Record) {
        let us = u64::try_from(record.took.as_micros()).unwrap_or(u64::MAX);
        self.number("total_us", us);
        self.number("bytes_in", record.ending.bytes_in);
        self.number("bytes_out", record.ending.bytes_out);
    }
}

/// The values of those parameters are not for a log.
fn hide_query(query: &str, hide: &[Hide]) -> String {
    let hidden = |name: &str| {
        hide.iter().any(|hide| match hide {
            Hide::Query(wanted) => decoded(name).eq(wanted.bytes()),
            Hide::Header(_) => false,
        })
    };
    let mut out = String::with_capacity(query.len());
    for (i, pair) in query.split('&').enumerate() {
        if i > 0 {
            out.push('&');
        }
        match pair.split_once('=') {
            Some((name, _)) if hidden(name) => {
                out.push_str(name);
                out.push_str("=***");
            }
            _ => out.push_str(pair),
        }
    }
    out
}

/// A parameter's name as the server behind reads it: an escape hides nothing from it.
fn decoded(name: &str) -> impl Iterator<Item = u8> {
    let mut rest = name.as_bytes();
    std::iter::from_fn(move || {
        let (byte, after) = match *rest {
            [b'%', high, low, ref after @ ..] => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'%', &rest[1..]),
            },
            [b'+', ref after @ ..] => (b' ', after),
            [byte, ref after @ ..] => (byte, after),
            [] => return None,
        };
        rest = after;
        Some(byte)
    })
}

fn digit(hex: u8) -> Option<u8> {
    char::from(hex).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// A JSON string (RFC 8259 section 7). What is not UTF-8 is shown as its replacement.
fn write_text(out: &mut Vec<u8>, value: &[u8]) {
    let value = value.get(..VALUE_BYTES_MAX).unwrap_or(value);
    let text = String::from_utf8_lossy(value);
    // Writing to memory does not fail, and a string can be a key of nothing else.
    let _ = serde_json::to_writer(&mut *out, text.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sends_cannot_leave_its_string() {
        let table: [(&[u8], &str); 4] = [
            (b"plain", r#""plain""#),
            (b"a\"},\n{\"b", r#""a\"},\n{\"b""#),
            (b"\x00\x1b[31m", r#""\u0000\u001b[31m""#),
            (b"\xff", "\"\u{fffd}\""),
        ];
        for (value, expected) in table {
            let mut out = Vec::new();
            write_text(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn hidden_parameters_keep_their_name_alone() {
        let hide = [Hide::Query("token".to_owned())];
        assert_eq!(
            hide_query("a=1&token=s3cret&tokens=2&token", &hide),
            "a=1&token=***&tokens=2&token"
        );
        let table = [
            ("%74oken=s3cret", "%74oken=***"),
            ("t%6Fk%65n=s3cret&%", "t%6Fk%65n=***&%"),
            ("%7oken=1&toke%6=2&%&=3", "%7oken=1&toke%6=2&%&=3"),
        ];
        for (query, expected) in table {
            assert_eq!(hide_query(query, &hide), expected);
        }
    }

    #[test]
    fn the_weight_says_how_many_a_line_stands_for() {
        assert_eq!((weight(10_000), weight(WHOLE), weight(0)), (100, 1, 1_000_000));
        assert!(sampled(WHOLE, u64::MAX) && !sampled(0, 0));
    }
}
