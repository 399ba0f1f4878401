//! Kept responses: who is answered by them, when they stand in for a failure, and how much room
//! they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use sluice_tests::{Client, Config, Finished, Origin, Response, Sluice, eventually};
use tempfile::TempDir;

/// Answers with a count, these field lines, and what `Accept` said.
fn counting(fields: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::answering(move |request| {
        let n = count.fetch_add(1, Ordering::SeqCst) + 1;
        let accept = request.head.field("accept").unwrap_or("any");
        let body = format!("{n} {accept}");
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    })
}

fn run(sluice: &Sluice, args: &[&str]) -> Finished {
    let control = sluice.dir().join("control.sock");
    let control = control.to_string_lossy();
    Sluice::command(&[args, &["--control", &control]].concat())
}

fn start(origin: &Origin, route: &str) -> Sluice {
    Sluice::start(Config::to(&[origin.addr()]).route(route))
}

#[track_caller]
fn says(response: &Response, status: u16, body: &str) {
    assert_eq!((response.status(), response.text().as_str()), (status, body));
}

#[test]
fn a_fresh_copy_answers_and_is_counted_and_logged() {
    let origin = counting("ETag: \"v1\"\r\nX-Kind: plain\r\n");
    let sluice = start(&origin, "cache = { ttl = \"1h\" }");
    let mut client = sluice.client();
    says(&client.get("/a"), 200, "1 any");
    let hit = client.get("/a");
    says(&hit, 200, "1 any");
    assert!(hit.field("age").is_some_and(|age| age.parse::<u64>().is_ok()), "{hit:?}");
    assert_eq!((hit.field("etag"), hit.field("x-kind")), (Some("\"v1\""), Some("plain")));
    assert_eq!((hit.field("content-length"), hit.field("x-degraded")), (Some("5"), None));
    client.send("HEAD /a HTTP/1.1\r\nHost: test.example\r\n\r\n");
    let head = client.read_bodyless();
    assert_eq!((head.status(), head.field("content-length")), (200, Some("5")));
    // The same connection goes on after it, and so nothing of a body was sent.
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: test.example\r\nIf-None-Match: \"x\", W/\"v1\"\r\n\r\n");
    let unchanged = client.read_bodyless();
    assert_eq!((unchanged.status(), unchanged.field("content-length")), (304, None));
    says(&client.get("/a?q"), 200, "2 any");
    says(&client.ask_host("other.example", "/a", ""), 200, "3 any");
    says(&client.ask("/a", "Cache-Control: no-cache\r\n"), 200, "4 any");
    says(&client.get("/a"), 200, "4 any");
    says(&client.ask("/a", "Cache-Control: no-store\r\n"), 200, "5 any");
    says(&client.ask("/a", "Range: bytes=0-1\r\n"), 200, "6 any");
    says(&client.ask("/a", "Authorization: Basic x\r\n"), 200, "7 any");
    says(&client.ask("/a", "Cookie: session=1\r\n"), 200, "8 any");
    says(&client.get("/a"), 200, "4 any");
    let lines = sluice.log_lines(13);
    let used: Vec<_> = lines.iter().map(|line| line["cache"].as_str().unwrap_or("-")).collect();
    let expected = [
        "miss", "hit", "hit", "hit", "miss", "miss", "bypass", "hit", "bypass", "bypass", "bypass",
        "miss", "hit",
    ];
    assert_eq!(used, expected);
    sluice.wait_for_metric("sluice_cache_requests_total{route=\"all\",result=\"hit\"}", 5.0);
    sluice.wait_for_metric("sluice_cache_keys", 3.0);
    assert_eq!(sluice.admin("/v1/cache").json()["workers"][0]["keys"], 3);
}

#[test]
fn what_vary_names_and_what_the_key_holds_is_told_apart() {
    let origin = counting("Vary: Accept\r\n");
    let sluice = start(&origin, "cache = { ttl = \"1h\", key = [\"header:authorization\"] }");
    let mut client = sluice.client();
    let anna = "Authorization: anna\r\n";
    for _ in 0..2 {
        says(&client.get("/"), 200, "1 any");
        says(&client.ask("/", "Accept: a\r\n"), 200, "2 a");
        says(&client.ask("/", anna), 200, "3 any");
        says(&client.ask("/", "Authorization: bob\r\n"), 200, "4 any");
    }
    let none = counting("Vary: *\r\n");
    let sluice = start(&none, "cache = { ttl = \"1h\" }");
    says(&sluice.client().get("/"), 200, "1 any");
    says(&sluice.client().get("/"), 200, "2 any");
    let cookie = counting("Set-Cookie: a=1\r\n");
    let sluice = start(&cookie, "cache = { ttl = \"1h\" }");
    says(&sluice.client().get("/"), 200, "1 any");
    says(&sluice.client().get("/"), 200, "2 any");
}

#[test]
fn a_copy_is_fresh_no_longer_than_said() {
    let origin = counting("");
    let sluice = start(&origin, "cache = { ttl = \"300ms\" }");
    let mut client = sluice.client();
    says(&client.get("/"), 200, "1 any");
    eventually("a second response", || (client.get("/").text() == "2 any").then_some(()));
}

/// 0: well, 1: answers 500, 2: breaks, 3: says nothing.
fn moody(mood: &Arc<AtomicU8>) -> Origin {
    let mood = Arc::clone(mood);
    Origin::new(move |connection| {
        loop {
            connection.read_request()?;
            match mood.load(Ordering::SeqCst) {
                0 => connection.write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")?,
                1 => connection.write("HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad")?,
                2 => return connection.reset(),
                _ => return connection.stall(),
            }
        }
    })
}

#[test]
fn a_stale_copy_stands_in_for_every_failure_and_without_one_the_fallback() {
    let mood = Arc::new(AtomicU8::new(0));
    let origin = moody(&mood);
    let config = Config::to(&[origin.addr()]).route(
        "cache = { stale = \"1h\" }\ntimeout = \"300ms\"\nretries = 0\nfallback = { body = \"sorry\" }",
    );
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for _ in 0..2 {
        let response = client.get("/");
        says(&response, 200, "good");
        assert_eq!(response.field("age"), None, "it is the server that answers");
    }
    for (at, cause) in [(1, "5xx"), (2, "connect"), (3, "timeout")] {
        mood.store(at, Ordering::SeqCst);
        let stale = client.get("/");
        says(&stale, 200, "good");
        let mark = stale.field("x-degraded").unwrap_or_default();
        assert!(mark.starts_with("stale;age="), "{cause}: {stale:?}");
        assert!(stale.field("age").is_some());
        let other = client.get("/other");
        says(&other, 503, "sorry");
        assert_eq!(other.field("x-degraded"), Some("static"), "{cause}");
        for source in ["stale", "static"] {
            let labels = format!("route=\"all\",cause=\"{cause}\",source=\"{source}\"");
            sluice.wait_for_metric(&format!("sluice_degraded_total{{{labels}}}"), 1.0);
        }
    }
    let lines = sluice.log_lines(8);
    assert_eq!((&lines[2]["degraded"], &lines[2]["cache"]), (&"stale".into(), &"stale".into()));
    mood.store(0, Ordering::SeqCst);
    assert_eq!(client.get("/").field("x-degraded"), None, "it ends by itself");
}

#[test]
fn drills_switches_and_an_open_breaker_are_answered_by_copies() {
    let mood = Arc::new(AtomicU8::new(0));
    let origin = moody(&mood);
    let config = Config::to(&[origin.addr()])
        .upstream("breaker = { consecutive = 2, open_for = \"1min\" }")
        .route("cache = { stale = \"1h\" }\ngroup = \"shop\"\nretries = 0");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    says(&client.get("/"), 200, "good");
    let becomes = |cause: &str| {
        let labels = format!("route=\"all\",cause=\"{cause}\",source=\"stale\"");
        let counted = format!("sluice_degraded_total{{{labels}}}");
        eventually(&counted, || {
            let response = sluice.client().get("/");
            says(&response, 200, "good");
            sluice.metrics().contains_key(&counted).then_some(())
        });
        let response = sluice.client().get("/");
        let mark = response.field("x-degraded").unwrap_or_default();
        assert!(mark.starts_with("stale;age="), "{cause}: {response:?}");
    };
    assert_eq!(run(&sluice, &["drill", "all", "--cause", "timeout"]).code, Some(0));
    becomes("timeout");
    assert_eq!(run(&sluice, &["drill", "all", "--stop"]).code, Some(0));
    assert_eq!(run(&sluice, &["switch", "survival", "on"]).code, Some(0));
    becomes("off");
    assert_eq!(run(&sluice, &["switch", "survival", "off"]).code, Some(0));
    eventually("the server again", || {
        sluice.client().get("/").field("x-degraded").is_none().then_some(())
    });
    mood.store(1, Ordering::SeqCst);
    becomes("open");
}

/// Two routes that keep what they get for an hour, and a process whose admin token is `sesame`.
fn kept(origin: &Origin) -> (Sluice, TempDir) {
    let dir = TempDir::new().expect("a temporary folder");
    let file = dir.path().join("token");
    std::fs::write(&file, "sesame").expect("a token");
    let cache = "cache = { ttl = \"1h\", stale = \"1h\" }";
    let other = format!("[route.other]\nmatch = \"/other\"\nto = \"app\"\n{cache}\n");
    let config = Config::to(&[origin.addr()]).workers(2).route(cache).more(&other);
    (Sluice::start(config.admin(&format!("token = \"file:{}\"", file.display()))), dir)
}

#[test]
fn what_was_kept_is_forgotten_by_who_shows_the_token() {
    let origin = counting("");
    let (sluice, _dir) = kept(&origin);
    let purge = |query: &str, fields: &str| {
        let mut admin = sluice.admin_client();
        admin.send(format!(
            "POST /v1/cache{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{fields}\r\n"
        ));
        admin.read_bodyless()
    };
    let keys = |count: u64| {
        eventually(&format!("{count} keys"), || {
            let workers = sluice.admin("/v1/cache").json()["workers"].clone();
            let keys = workers.as_array()?.iter().map(|it| it["keys"].as_u64());
            (keys.sum::<Option<u64>>()? == count).then_some(())
        });
    };
    // One connection, and so one worker, which has two copies.
    let mut client = sluice.client();
    let fill = |client: &mut Client, first: usize| {
        says(&client.get("/a"), 200, &format!("{first} any"));
        says(&client.get("/other"), 200, &format!("{} any", first + 1));
        for (path, body) in [("/a", first), ("/other", first + 1)] {
            let hit = client.get(path);
            says(&hit, 200, &format!("{body} any"));
            assert!(hit.field("age").is_some(), "{hit:?}");
        }
        keys(2);
    };
    let shown = "Authorization: Bearer sesame\r\nX-Sluice: 1\r\n";
    fill(&mut client, 1);
    for (fields, status) in [
        ("", 403),
        ("Authorization: Bearer sesame\r\n", 403),
        ("Authorization: Bearer no\r\nX-Sluice: 1\r\n", 401),
    ] {
        assert_eq!(purge("", fields).status(), status, "{fields}");
    }
    assert_eq!(purge("?route=nobody", shown).status(), 404);
    assert_eq!(purge("?path=/a", shown).status(), 400);
    keys(2);
    let done = purge("?route=all", shown);
    assert_eq!((done.status(), done.field("cache-control")), (204, Some("no-store")));
    keys(1);
    let new = client.get("/a");
    says(&new, 200, "3 any");
    assert_eq!((new.field("age"), new.field("x-degraded")), (None, None));
    says(&client.get("/other"), 200, "2 any");
    assert_eq!(purge("", shown).status(), 204);
    keys(0);
    fill(&mut client, 4);
    let told = sluice.wait_for_stderr("cache_purged");
    assert!(told.contains("admin token"), "{told}");
}

#[test]
fn what_is_one_users_own_is_for_nobody_else() {
    let count = AtomicUsize::new(0);
    let origin = Origin::answering(move |request| {
        let n = count.fetch_add(1, Ordering::SeqCst) + 1;
        let who = |name: &str| request.head.field(name).unwrap_or("nobody").to_owned();
        let body = format!("{n} {} {}", who("x-api-key"), who("cookie"));
        let fields =
            if request.head.line.contains("/public") { "Cache-Control: public\r\n" } else { "" };
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    });
    let anna = "X-Api-Key: anna\r\n";
    let bob = "X-Api-Key: bob\r\n";
    let anna_s = "Cookie: anna\r\n";
    let (cache, keyed) =
        ("ttl = \"1h\"", "ttl = \"1h\", key = [\"header:x-api-key\", \"header:cookie\"]");
    // The key holds nothing of the user: nothing of a user's is kept, or given to him.
    let sluice = start(&origin, &format!("cache = {{ {cache} }}"));
    let mut client = sluice.client();
    for (fields, body, used) in [
        (anna, "1 anna nobody", "bypass"),
        (anna, "2 anna nobody", "bypass"),
        ("", "3 nobody nobody", "miss"),
        (bob, "4 bob nobody", "bypass"),
        (anna_s, "5 nobody anna", "miss"),
        ("", "3 nobody nobody", "hit"),
        (anna_s, "6 nobody anna", "miss"),
    ] {
        let response = client.ask("/", fields);
        says(&response, 200, body);
        assert_eq!(response.field("age").is_some(), used == "hit", "{fields} {body}");
    }
    // Said to be for everybody, whoever shows a cookie.
    says(&client.ask("/public", anna_s), 200, "7 nobody anna");
    says(&client.ask("/public", "Cookie: bob\r\n"), 200, "7 nobody anna");
    says(&client.ask("/public", bob), 200, "8 bob nobody");
    let lines = sluice.log_lines(10);
    let used: Vec<_> = lines.iter().map(|line| line["cache"].as_str().unwrap_or("-")).collect();
    assert_eq!(used[..7], ["bypass", "bypass", "miss", "bypass", "miss", "hit", "miss"]);
    // The key holds both: each has copies of his own.
    let sluice = start(&origin, &format!("cache = {{ {keyed} }}"));
    let mut client = sluice.client();
    for _ in 0..2 {
        says(&client.ask("/", anna), 200, "9 anna nobody");
        says(&client.ask("/", bob), 200, "10 bob nobody");
        says(&client.ask("/", anna_s), 200, "11 nobody anna");
        says(&client.get("/"), 200, "12 nobody nobody");
    }
}

#[test]
fn memory_is_bounded_and_bodies_come_back_to_the_byte() {
    let origin = Origin::answering(|request| {
        let size: usize = request.head.line[6..].split(' ').next().unwrap().parse().unwrap_or(9);
        let body: Vec<u8> =
            (0..size).map(|i| u8::try_from(i * 31 % 251).unwrap_or_default()).collect();
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(70_000) {
            answer.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            answer.extend_from_slice(piece);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\n\r\n");
        answer
    });
    let config = Config::to(&[origin.addr()])
        .server("cache_memory = \"4MiB\"")
        .route("cache = { ttl = \"1h\", max_body = \"2MiB\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let first = client.get("/z1500000").body;
    let second = client.get("/z1500000");
    assert!(second.field("age").is_some(), "{:?}", second.head);
    assert_eq!(first.len(), 1_500_000);
    assert!(second.body == first, "to the byte");
    assert_eq!(client.get("/z2500000").body.len(), 2_500_000);
    assert!(client.get("/z2500000").field("age").is_none(), "too long to be kept");
    for i in 0..300 {
        assert_eq!(client.get(&format!("/z{}", 40_000 + i)).body.len(), 40_000 + i);
    }
    let cache = sluice.admin("/v1/cache").json();
    let worker = &cache["workers"][0];
    assert!(worker["bytes"].as_u64().unwrap() <= 4 << 20, "{cache}");
    assert!(worker["evicted"].as_u64().unwrap() > 150, "{cache}");
    assert!(worker["keys"].as_u64().unwrap() > 50, "{cache}");
    assert!(client.get("/z40299").field("age").is_some(), "the newest is there");
    assert!(client.get("/z40000").field("age").is_none(), "the oldest made room");
}

#[test]
fn a_response_that_breaks_off_is_not_kept() {
    let count = AtomicUsize::new(0);
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            return connection.write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        }
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")
    });
    let sluice = start(&origin, "cache = { ttl = \"1h\" }");
    let mut client = sluice.client();
    client.send("GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert_eq!(client.read_bodyless().status(), 200);
    assert!(client.breaks_off());
    says(&sluice.client().get("/"), 200, "whole");
    says(&sluice.client().get("/"), 200, "whole");
    sluice.wait_for_metric("sluice_cache_keys", 1.0);
}

#[test]
fn a_reload_drops_copies_of_a_rule_that_changed() {
    let origin = counting("");
    let config =
        |ttl: &str| Config::to(&[origin.addr()]).route(&format!("cache = {{ ttl = \"{ttl}\" }}"));
    let sluice = Sluice::start(config("1h"));
    says(&sluice.client().get("/"), 200, "1 any");
    assert_eq!(sluice.reload(config("1h")).code, Some(0));
    says(&sluice.client().get("/"), 200, "1 any");
    assert_eq!(sluice.reload(config("2h")).code, Some(0));
    sluice.wait_for_metric("sluice_cache_keys", 0.0);
    says(&sluice.client().get("/"), 200, "2 any");
}
