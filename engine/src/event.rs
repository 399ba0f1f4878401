//! The gateway's own log: an event's name and its fields, on stderr. One JSON object a line, or
//! short text on a terminal.
//!
//! For the control thread. A worker counts, it does not write.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use serde_json::Value;

use crate::clock;

/// `event!("worker_died", worker = 1, why = why)`
macro_rules! event {
    ($name:literal $(, $key:ident = $value:expr)* $(,)?) => {
        $crate::event::write($name, &[$((stringify!($key), serde_json::json!($value))),*])
    };
}
pub(crate) use event;

pub(crate) fn write(name: &str, fields: &[(&str, Value)]) {
    let stderr = std::io::stderr();
    let line = if stderr.is_terminal() { text(name, fields) } else { json(name, fields) };
    // Nobody reads stderr: then there is nobody to tell.
    let _ = stderr.lock().write_all(line.as_bytes());
}

/// A panic is an event like any other: one line, not the runtime's several.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let payload = panic.payload();
        let why = payload.downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        let at = panic.location().map(ToString::to_string);
        // Empty unless RUST_BACKTRACE asks for it.
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => Some(backtrace.to_string()),
            _ => None,
        };
        event!("panic", thread = thread.name(), why = why, at = at, trace = trace);
    }));
}

fn json(name: &str, fields: &[(&str, Value)]) -> String {
    let time = clock::rfc3339(clock::since_1970());
    let mut line = format!("{{\"time\":\"{time}\",\"event\":\"{name}\"");
    for (key, value) in fields {
        // Keys are identifiers of ours, and a `Value` shows itself as JSON.
        let _ = write!(line, ",\"{key}\":{value}");
    }
    line.push_str("}\n");
    line
}

fn text(name: &str, fields: &[(&str, Value)]) -> String {
    let mut line = name.to_owned();
    for (key, value) in fields {
        let _ = match value {
            Value::String(text) if text.contains('\n') => write!(line, " {key}:\n{text}"),
            Value::String(text) if !text.contains([' ', '"']) => write!(line, " {key}={text}"),
            value => write!(line, " {key}={value}"),
        };
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_json_whatever_its_fields_hold() {
        let fields = [("why", Value::from("two\nlines and a \"quote\"")), ("worker", 3.into())];
        let line = json("worker_died", &fields);
        assert_eq!(line.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&read["event"], &read["worker"]), (&"worker_died".into(), &3.into()));
        assert_eq!(read["why"], "two\nlines and a \"quote\"");
    }

    #[test]
    fn text_quotes_what_has_blanks() {
        let fields =
            [("why", Value::from("no room")), ("to", "stdout".into()), ("lines", 2.into())];
        assert_eq!(text("log_lost", &fields), "log_lost why=\"no room\" to=stdout lines=2\n");
    }
}
