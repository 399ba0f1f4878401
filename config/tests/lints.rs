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

#[test]
fn a_strict_limit_behind_a_proxy_is_told_of_at_its_own_line() {
    let hides = |most: u32| {
        format!(
            "the proxy before Redis hides its restarts, and what they lose: up to {most} more then"
        )
    };
    for (proxied, strict, expected) in [
        ("proxied = true", "strict = true", vec![(12, hides(3))]),
        ("proxied = true", "strict = false", vec![]),
        ("proxied = false", "strict = true", vec![]),
        ("", "strict = true", vec![]),
    ] {
        let text = format!(
            "[server]\n[store.redis]\nurl = \"redis://a:1\"\nnodes = 3\n{proxied}\n\
             [limit.codes]\nkind = \"sliding\"\nrate = \"3/h\"\nstore = \"redis\"\n\
             lost = \"closed\"\n\n{strict}\n[route.r]\nmatch = \"/\"\n\
             respond = {{ body = \"ok\" }}\nlimits = [\"codes\"]\n"
        );
        let warnings = parse(&text).unwrap().warnings;
        let found: Vec<_> = warnings.iter().map(|w| (w.line, w.message.clone())).collect();
        assert_eq!(found, expected, "{text}");
        let advised = |hint: &str| hint.contains("Redis itself");
        assert!(warnings.iter().all(|w| w.hint.as_deref().is_some_and(advised)), "{warnings:?}");
        assert!(warnings.iter().all(|w| w.column == 10), "{warnings:?}");
    }
}
