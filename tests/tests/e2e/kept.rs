//! What is kept of responses, for how long, in how much room, and what a copy looks like.

use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_tests::{Client, Config, Origin, Sluice};

/// Answers with a count, these field lines, and as many bytes as the path says.
fn sized(fields: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::answering(move |request| {
        let n = count.fetch_add(1, Ordering::SeqCst) + 1;
        let target = request.head.line.split(' ').nth(1).unwrap_or_default();
        let size = target.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(8);
        let body = format!("{n:<size$}");
        let body = if request.head.line.starts_with("HEAD ") { "" } else { &body };
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {size}\r\n\r\n{body}").into_bytes()
    })
}

fn start(origin: &Origin, server: &str, cache: &str) -> Sluice {
    let config = Config::to(&[origin.addr()]).server(server);
    Sluice::start(config.route(&format!("cache = {{ {cache} }}")))
}

/// Which response of the server this is, and whether it is a copy.
#[track_caller]
fn got(client: &mut Client, target: &str, fields: &str) -> (usize, bool) {
    let response = client.ask(target, fields);
    assert_eq!(response.status(), 200);
    let number = response.text().trim().parse().expect("a number");
    (number, response.field("age").is_some())
}

fn bytes(sluice: &Sluice) -> u64 {
    sluice.admin("/v1/cache").json()["workers"][0]["bytes"].as_u64().expect("a number")
}

#[test]
fn the_answer_to_head_is_no_copy_for_get() {
    let origin = sized("");
    let sluice = start(&origin, "", "ttl = \"1h\"");
    let mut client = sluice.client();
    for _ in 0..2 {
        client.send("HEAD /a HTTP/1.1\r\nHost: test.example\r\n\r\n");
        assert_eq!(client.read_bodyless().field("age"), None);
    }
    assert_eq!(got(&mut client, "/a", ""), (3, false));
    assert_eq!(got(&mut client, "/a", ""), (3, true));
}

#[test]
fn how_long_is_reckoned_by_the_servers_own_clock_and_age() {
    for (fields, copies) in [
        // Long ago by any other clock.
        ("Date: Thu, 01 Jan 2026 10:00:00 GMT\r\nExpires: Thu, 01 Jan 2026 11:00:00 GMT\r\n", true),
        (
            "Date: Thu, 01 Jan 2026 10:00:00 GMT\r\nExpires: Thu, 01 Jan 2026 10:00:00 GMT\r\n",
            false,
        ),
        ("Expires: 0\r\n", false),
        ("Expires: 0\r\nCache-Control: max-age=60\r\n", true),
        ("Cache-Control: max-age=3600\r\nAge: 100\r\n", true),
        ("Cache-Control: max-age=100\r\nAge: 100\r\n", false),
        ("Cache-Control: max-age=x\r\n", false),
    ] {
        let origin = sized(fields);
        let sluice = start(&origin, "", "ttl = \"1h\"");
        let mut client = sluice.client();
        assert_eq!(client.get("/a").status(), 200);
        let second = client.get("/a");
        assert_eq!(second.text().trim() == "1", copies, "{fields}");
        if copies && fields.contains("Age: 100") {
            let age = second.field("age").and_then(|age| age.parse::<u64>().ok());
            assert!(age >= Some(100), "{second:?}");
        }
    }
}

#[test]
fn a_copy_has_the_fields_of_its_response_and_none_that_are_for_one_hop() {
    let origin = sized(
        "X-Kind: plain\r\nAge: 7\r\nX-Degraded: lie\r\nKeep-Alive: timeout=5\r\nConnection: X-Hop\r\n\
         X-Hop: 1\r\nETag: \"a\"\r\n",
    );
    let sluice = start(&origin, "", "ttl = \"1h\"");
    let mut client = sluice.client();
    assert_eq!(client.get("/a").status(), 200);
    let copy = client.get("/a");
    assert_eq!(copy.text().trim(), "1");
    let times = |name: &str| {
        copy.head.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name)).count()
    };
    for (name, count) in [
        ("x-kind", 1),
        ("etag", 1),
        ("age", 1),
        ("date", 1),
        ("content-length", 1),
        ("x-degraded", 0),
        ("keep-alive", 0),
        ("x-hop", 0),
        ("connection", 0),
    ] {
        assert_eq!(times(name), count, "{name}: {copy:?}");
    }
}

#[test]
fn what_is_longer_than_the_route_says_is_not_kept_whichever_way_it_comes() {
    let chunked = Origin::answering(|request| {
        let size: usize = request.head.line[5..].split(' ').next().unwrap().parse().unwrap_or(0);
        let body = "c".repeat(size);
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{size:x}\r\n{body}\r\n0\r\n\r\n").into_bytes()
    });
    for origin in [sized(""), chunked] {
        let sluice = start(&origin, "", "ttl = \"1h\", max_body = \"4KiB\"");
        let mut client = sluice.client();
        for (target, kept) in [("/4096", true), ("/4097", false), ("/40000", false)] {
            assert_eq!(client.get(target).status(), 200);
            assert_eq!(client.get(target).field("age").is_some(), kept, "{target}");
        }
    }
    // Nobody can tell whether this one broke off.
    let closing = Origin::new(|connection| {
        connection.read_request()?;
        connection.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end")
    });
    let sluice = start(&closing, "", "ttl = \"1h\"");
    for _ in 0..2 {
        let response = sluice.client().get("/a");
        assert_eq!((response.text().as_str(), response.field("age")), ("to the end", None));
    }
}

#[test]
fn a_new_response_takes_the_place_of_the_old_one() {
    let origin = sized("Vary: Accept\r\n");
    let sluice = start(&origin, "", "ttl = \"1h\"");
    let mut client = sluice.client();
    assert_eq!(got(&mut client, "/1000", ""), (1, false));
    // The next request on a connection begins when what the last one brought is in its place.
    assert_eq!(got(&mut client, "/1000", ""), (1, true));
    let one = bytes(&sluice);
    for n in 2..8 {
        assert_eq!(got(&mut client, "/1000", "Cache-Control: no-cache\r\n"), (n, false));
        assert_eq!(got(&mut client, "/1000", ""), (n, true));
    }
    assert_eq!(bytes(&sluice), one);
    // Sixteen kinds of one response, and no more: the oldest makes room.
    for n in 8..24 {
        assert_eq!(got(&mut client, "/1000", &format!("Accept: {n}\r\n")), (n, false));
    }
    assert_eq!(got(&mut client, "/1000", "Accept: 8\r\n"), (8, true));
    assert_eq!(bytes(&sluice), 16 * one);
    assert_eq!(got(&mut client, "/1000", ""), (24, false));
}

#[test]
fn what_is_asked_for_stays_and_what_is_not_makes_room() {
    let origin = sized("");
    let sluice = start(&origin, "cache_memory = \"64KiB\"", "ttl = \"1h\"");
    let mut client = sluice.client();
    assert_eq!(got(&mut client, "/wanted/9000", ""), (1, false));
    for n in 0..40 {
        assert!(!got(&mut client, &format!("/{n}/9000"), "").1);
        assert_eq!(got(&mut client, "/wanted/9000", ""), (1, true), "after {n}");
    }
    assert!(bytes(&sluice) <= 64 << 10);
    assert!(!got(&mut client, "/0/9000", "").1);
}
