//! Bounds of what may be written about the gateway itself. Those of decisions are the plan's.

use core::time::Duration;
use std::collections::BTreeMap;

use sluice_policy::unit::Span;

use crate::check::fault;
use crate::document::Document;
use crate::reader::Reader;
use crate::scalar::Listening;
use crate::written::{AdminTable, ServerTable};

pub(crate) fn check(
    document: &Document<'_>,
    reader: &mut Reader,
    server: &ServerTable,
    admin: &AdminTable,
) {
    numbers(document, reader, server);
    addresses(document, reader, server, admin);
}

fn numbers(document: &Document<'_>, reader: &mut Reader, server: &ServerTable) {
    let mut within = |path: &str, value: u64, low: u64, high: u64, shown: [&dyn ToString; 2]| {
        if !(low..=high).contains(&value) {
            let hint = format!("write {} to {}", shown[0].to_string(), shown[1].to_string());
            let span = document.underline(path);
            reader.note(fault(path, span, "out of bounds".to_owned(), Some(hint)));
        }
    };
    within("server.header_bytes", server.header_bytes.0, 1 << 10, 64 << 10, [&"1KiB", &"64KiB"]);
    within("server.cache_memory", server.cache_memory.0, 1 << 16, 1 << 40, [&"64KiB", &"1TiB"]);
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let shown: [&dyn ToString; 2] = [&Span(Duration::ZERO), &Span(BUSY_POLL_MAX)];
    within("server.busy_poll", micros(server.busy_poll.0), 0, micros(BUSY_POLL_MAX), shown);
    for (key, value, low, high) in [
        ("headers", u32::from(server.headers), 1_u32, 1000_u32),
        ("connections", server.connections, 1, CONNECTIONS_MAX),
        ("connections_per_client", server.connections_per_client, 0, CONNECTIONS_MAX),
        ("limit_keys", server.limit_keys, 1 << 10, 1 << 26),
    ] {
        let path = format!("server.{key}");
        within(&path, value.into(), low.into(), high.into(), [&low, &high]);
    }
    for (key, span, low) in [
        ("drain", server.drain, Duration::ZERO),
        ("header_timeout", server.header_timeout, TIMEOUT_MIN),
        ("idle_timeout", server.idle_timeout, TIMEOUT_MIN),
        ("read_timeout", server.read_timeout, TIMEOUT_MIN),
        ("write_timeout", server.write_timeout, TIMEOUT_MIN),
    ] {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let path = format!("server.{key}");
        let shown: [&dyn ToString; 2] = [&Span(low), &Span(TIMEOUT_MAX)];
        within(&path, millis(span.0), millis(low), millis(TIMEOUT_MAX), shown);
    }
}

/// At least one address, and each of them once: the kernel would share it in silence.
fn addresses(
    document: &Document<'_>,
    reader: &mut Reader,
    server: &ServerTable,
    admin: &AdminTable,
) {
    if reader.touches("server.listen") {
        return;
    }
    if server.listen.is_empty() {
        let message = "there is no address to listen on".to_owned();
        let span = document.underline("server.listen");
        reader.note(fault("server.listen", span, message, Some("write [\":8080\"]".to_owned())));
    }
    let listeners = server.listen.iter().enumerate();
    let listeners = listeners.map(|(i, one)| (format!("server.listen[{i}]"), one.addr.0));
    let admin = admin.listen.0.map(|addr| ("admin.listen".to_owned(), addr));
    let mut seen = BTreeMap::new();
    for (path, addr) in listeners.chain(admin).filter(|(_, addr)| addr.port() != 0) {
        if let Some(first) = seen.get(&addr) {
            let message = format!("{} is taken by {first}", Listening(addr));
            let hint = Some("write each address once".to_owned());
            reader.note(fault(&path, document.underline(&path), message, hint));
        } else {
            seen.insert(addr, path);
        }
    }
}

const CONNECTIONS_MAX: u32 = 1_000_000;
/// Whoever waits longer gains nothing by being found at once.
const BUSY_POLL_MAX: Duration = Duration::from_millis(10);
/// Timers have a grain of milliseconds.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
