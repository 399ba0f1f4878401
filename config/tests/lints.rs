//! What can be used, and does less than it says.

use sluice_config::parse;

#[test]
fn a_response_that_no_worker_has_room_for_is_never_kept() {
    let never = |most, memory| {
        vec![format!("bodies of {most} are never kept: a worker has {memory} for all")]
    };
    for (server, cache, line, expected) in [
        ("", "cache = { ttl = \"1s\" }", 0, vec![]),
        ("", "cache = { ttl = \"1s\", max_body = \"64MiB\" }", 0, vec![]),
        ("", "cache = { ttl = \"1s\", max_body = \"65MiB\" }", 9, never("65MiB", "64MiB")),
        ("cache_memory = \"1GiB\"", "cache = { ttl = \"1s\", max_body = \"65MiB\" }", 0, vec![]),
        ("cache_memory = \"1MiB\"", "cache = { ttl = \"1s\" }", 0, vec![]),
        ("cache_memory = \"512KiB\"", "cache = { ttl = \"1s\" }", 9, never("1MiB", "512KiB")),
        ("cache_memory = \"512KiB\"", "cache = { ttl = \"1s\", max_body = \"9KiB\" }", 0, vec![]),
        ("cache_memory = \"512KiB\"", "", 0, vec![]),
    ] {
        let text = format!(
            "[server]\n{server}\n[upstream.a]\nservers = [\"a:1\"]\n[route.r]\nmatch = \"/\"\n\
             to = \"a\"\n\n{cache}\n"
        );
        let warnings = parse(&text).unwrap().warnings;
        let found: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
        assert_eq!(found, expected, "{text}");
        assert!(warnings.iter().all(|w| w.line == line), "{warnings:?}");
    }
}
