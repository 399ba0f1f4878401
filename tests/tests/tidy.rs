//! How the sources are kept. Each rule is a function over one file, shown to complain below.

use sluice_tests::source::Source;

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// The only reader of clocks in the gateway; load and tests measure by their own.
const CLOCK: &str = "engine/src/clock.rs";
const CLOCK_READERS: &[&str] = &["Instant::now", "SystemTime::now", "clock_gettime"];
const MEASURES: &[&str] = &["bench/", "tests/"];
const UNSAFE_MAY: &[&str] = &[
    "engine/src/sys.rs",
    "engine/src/runtime/",
    "engine/src/runtime.rs",
    // The floor of the benches: a ring without a runtime.
    "bench/src/relay.rs",
    "bench/src/relay/",
];
const MONOIO_MAY: &[&str] = &["engine/src/runtime/", "engine/src/runtime.rs", "bench/"];

type Rule = fn(&Source) -> Vec<String>;

const RULES: &[Rule] = &[
    says_what_it_is_for,
    is_not_too_long,
    has_short_functions,
    has_a_telling_name,
    reads_no_clock,
    is_safe,
    knows_no_runtime,
    allows_nothing_bare,
    is_finished,
    is_named_without_get,
    does_not_sleep,
];

#[test]
fn the_house_is_tidy() {
    let sources = Source::all();
    assert!(sources.iter().any(|source| source.path == "tests/tests/tidy.rs"));
    let complaints: Vec<String> = sources.iter().flat_map(complaints).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn complaints(source: &Source) -> Vec<String> {
    let found = RULES.iter().flat_map(|rule| rule(source));
    found.map(|complaint| format!("{}: {complaint}", source.path)).collect()
}

fn says_what_it_is_for(source: &Source) -> Vec<String> {
    let said = source.text.starts_with("//! ");
    complain(!said, || "the first line must be `//!` and say what the file is for".into())
}

fn is_not_too_long(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    complain(lines > FILE_LINES_MAX, || format!("{lines} lines, more than {FILE_LINES_MAX}"))
}

fn has_short_functions(source: &Source) -> Vec<String> {
    let long = functions(&source.code).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX);
    long.map(|f| {
        format!("{}: `{}` has {} lines, more than {FUNCTION_LINES_MAX}", f.line, f.name, f.lines)
    })
    .collect()
}

fn has_a_telling_name(source: &Source) -> Vec<String> {
    let file = source.path.rsplit('/').next().unwrap_or_default();
    let empty = ["util", "helper", "manager"].into_iter().filter(|word| file.contains(word));
    empty.map(|word| format!("`{word}` in a file's name says nothing")).collect()
}

fn reads_no_clock(source: &Source) -> Vec<String> {
    if source.path == CLOCK || lies_in(source, MEASURES) {
        return Vec::new();
    }
    let read = |word: &&str| Some((word.to_string(), Source::line_naming(&source.code, word)?));
    let read = CLOCK_READERS.iter().filter_map(read);
    read.map(|(word, line)| format!("{line}: `{word}` belongs in {CLOCK}")).collect()
}

fn is_safe(source: &Source) -> Vec<String> {
    let line = Source::line_naming(&source.code, "unsafe");
    complain(line.is_some() && !lies_in(source, UNSAFE_MAY), || {
        format!("{}: `unsafe` belongs in {}", line.unwrap_or(0), UNSAFE_MAY.join(", "))
    })
}

fn knows_no_runtime(source: &Source) -> Vec<String> {
    let line = Source::line_naming(&source.code, "monoio");
    complain(line.is_some() && !lies_in(source, MONOIO_MAY), || {
        format!("{}: `monoio` belongs in engine/src/runtime", line.unwrap_or(0))
    })
}

fn allows_nothing_bare(source: &Source) -> Vec<String> {
    let bare = ["#[allow(", "#![allow("].into_iter().filter(|mark| source.code.contains(mark));
    bare.map(|mark| format!("`{mark}`: write #[expect(…, reason = \"…\")]")).collect()
}

fn is_finished(source: &Source) -> Vec<String> {
    let macros = ["todo!", "unimplemented!"].map(|word| (word, &source.code));
    let notes = ["TODO", "FIXME", "XXX"].map(|word| (word, &source.prose));
    let left = macros.iter().chain(&notes);
    left.filter_map(|(word, text)| Some((word, Source::line_naming(text, word)?)))
        .map(|(word, line)| format!("{line}: `{word}` is work that was left"))
        .collect()
}

fn is_named_without_get(source: &Source) -> Vec<String> {
    let named = functions(&source.code).into_iter().filter(|f| f.name.starts_with("get_"));
    named.map(|f| format!("{}: `{}`: name what it gives", f.line, f.name)).collect()
}

fn does_not_sleep(source: &Source) -> Vec<String> {
    let tests = match source.path.contains("tests/") {
        true => source.code.as_str(),
        false => &source.code[source.shipped().len()..],
    };
    complain(Source::names(tests, "thread::sleep"), || "a test waits for the event".into())
}

fn complain(wrong: bool, what: impl FnOnce() -> String) -> Vec<String> {
    if wrong { vec![what()] } else { Vec::new() }
}

fn lies_in(source: &Source, places: &[&str]) -> bool {
    places.iter().any(|place| source.path.starts_with(place))
}

struct Function<'a> {
    name: &'a str,
    /// Where it begins, from 1.
    line: usize,
    /// From its `fn` to its closing brace.
    lines: usize,
}

/// Every function with a body, nested ones too.
fn functions(code: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let inside_a_name = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[at..];
        let name = rest[3..].split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
        let name = name.unwrap_or_default();
        if inside_a_name || name.is_empty() {
            continue;
        }
        let Some(length) = length_of_function(rest) else { continue };
        let line = 1 + code[..at].matches('\n').count();
        found.push(Function { name, line, lines: 1 + rest[..length].matches('\n').count() });
    }
    found
}

/// Bytes up to the brace that closes the body; `None` for a declaration.
fn length_of_function(code: &str) -> Option<usize> {
    let mut depth = 0;
    // An array's length in the signature, `[u8; 4]`, holds a semicolon that ends nothing.
    let mut brackets = 0;
    for (at, c) in code.char_indices() {
        match c {
            '[' => brackets += 1,
            ']' => brackets -= 1,
            ';' if depth == 0 && brackets == 0 => return None,
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

mod broken_on_purpose {
    use super::*;

    const SLEEPS: &str = "//! A.\n#[cfg(test)]\nmod tests { fn a() { thread::sleep(b); } }";

    #[test]
    fn every_rule_complains() {
        let cases = [
            ("policy/src/a.rs", "fn a() {}", "first line"),
            ("policy/src/a.rs", "//!\nfn a() {}", "first line"),
            ("policy/src/http_util.rs", "//! A.", "`util`"),
            ("engine/src/manager.rs", "//! A.", "`manager`"),
            ("engine/src/worker.rs", "//! A.\nlet a = Instant::now();", "2: `Instant::now`"),
            ("policy/src/a.rs", "//! A.\nSystemTime::now()", "`SystemTime::now`"),
            ("engine/src/worker.rs", "//! A.\nunsafe { a() }", "`unsafe`"),
            ("bench/src/a.rs", "//! A.\nunsafe { a() }", "`unsafe`"),
            ("engine/src/proxy.rs", "//! A.\nuse monoio::net;", "`monoio`"),
            ("policy/src/a.rs", "//! A.\n#[allow(dead_code)]", "#[expect"),
            ("policy/src/a.rs", "//! A.\n#![allow(dead_code)]", "#[expect"),
            ("policy/src/a.rs", "//! A.\nfn a() { todo!() }", "`todo!`"),
            ("policy/src/a.rs", "//! A.\n// TODO: b", "2: `TODO`"),
            ("policy/src/a.rs", "//! A.\nfn get_a() {}", "`get_a`"),
            ("tests/tests/e2e/a.rs", "//! A.\nfn a() { thread::sleep(b); }", "waits"),
            ("policy/src/a.rs", SLEEPS, "waits"),
        ];
        for (path, text, expected) in cases {
            let found = complaints(&Source::new(path, text));
            let seen = matches!(found.as_slice(), [one] if one.contains(expected));
            assert!(seen, "{path}: {text}: {found:?}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_complained_about() {
        let cases = [
            ("engine/src/clock.rs", "//! A.\nInstant::now()"),
            ("bench/src/load.rs", "//! A.\nInstant::now()"),
            ("engine/src/sys.rs", "//! A.\nunsafe { a() }"),
            ("engine/src/runtime/ring.rs", "//! A.\nuse monoio::net; unsafe { a() }"),
            ("engine/src/a.rs", "//! A.\n// monoio is unsafe\nlet a = \"monoio TODO\";"),
            ("policy/src/a.rs", "//! A.\n#[expect(dead_code, reason = \"b\")]"),
            ("engine/src/a.rs", "//! A.\nfn budget_() {}"),
        ];
        for (path, text) in cases {
            let found = complaints(&Source::new(path, text));
            assert!(found.is_empty(), "{path}: {text}: {found:?}");
        }
    }

    #[test]
    fn length_is_counted_to_the_line() {
        for (lines, allowed) in [(FILE_LINES_MAX, true), (FILE_LINES_MAX + 1, false)] {
            let text = format!("//! A.\n{}", "a\n".repeat(lines - 1));
            assert_eq!(is_not_too_long(&Source::new("a.rs", &text)).is_empty(), allowed);
        }
        for (lines, allowed) in [(FUNCTION_LINES_MAX, true), (FUNCTION_LINES_MAX + 1, false)] {
            let body = "    a(\"}\"); // }\n".repeat(lines - 2);
            let text = format!("//! A.\nfn a(b: [u8; 2]) {{\n{body}}}\n");
            assert_eq!(has_short_functions(&Source::new("a.rs", &text)).is_empty(), allowed);
        }
    }
}
