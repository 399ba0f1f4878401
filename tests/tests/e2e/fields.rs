//! Header fields: what is kept as it came, what is dropped, what the gateway says itself.

use sluice_tests::{Config, Origin, Sluice};

#[test]
fn spelling_is_kept_both_ways() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nX-mixedCASE: A b\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\n\
          Content-Length: 0\r\n\r\n"
            .to_vec()
    });
    let sluice = Sluice::before(&origin);
    let response = sluice.client().ask("/a", "X-MyHeader: 1\r\nx-other:2\r\n");
    let request = origin.only_request();
    assert!(request.head.spells("X-MyHeader") && request.head.spells("x-other"), "{request:?}");
    assert!(response.head.spells("X-mixedCASE"), "{:?}", response.head);
    assert_eq!(response.head.all("set-cookie"), ["a=1", "b=2"], "never folded into one");
}

#[test]
fn fields_meant_for_one_hop_go_no_further() {
    const HOP: &str = "Connection: close, X-Drop\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\n\
                       Proxy-Connection: keep-alive\r\nX-Stay: 1\r\n";
    let origin = Origin::answering(|_| {
        format!("HTTP/1.1 200 OK\r\n{HOP}Content-Length: 0\r\n\r\n").into_bytes()
    });
    let sluice = Sluice::before(&origin);
    let asked =
        format!("{HOP}TE: gzip\r\nUpgrade: made-up/1\r\nProxy-Authorization: Basic eA==\r\n");
    let response = sluice.client().ask("/a", &asked);
    let request = origin.only_request();
    for name in ["x-drop", "keep-alive", "proxy-connection"] {
        assert_eq!(request.head.field(name), None, "{name} went up");
        assert_eq!(response.field(name), None, "{name} came down");
    }
    for name in ["te", "upgrade", "proxy-authorization"] {
        assert_eq!(request.head.field(name), None, "{name} went up");
    }
    assert_eq!(request.head.field("x-stay"), Some("1"));
    assert_eq!(response.field("x-stay"), Some("1"));
}

#[test]
fn a_client_cannot_have_the_gateways_own_fields_dropped() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let names = "host, x-forwarded-for, x-request-id, traceparent, x-forwarded-proto";
    sluice.client().ask("/a", &format!("Connection: {names}\r\n"));
    let request = origin.only_request();
    for name in names.split(", ") {
        assert!(request.head.field(name).is_some(), "{name} is gone: {:?}", request.head);
    }
}

#[test]
fn forwarded_fields_are_believed_from_trusted_peers_only() {
    const FORGED: &str = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
                          X-Forwarded-Host: shop.example\r\n";
    const TRUST: &str = "trusted_proxies = [\"127.0.0.0/8\"]";
    let cases = [
        ("trusted_proxies = []", "", "127.0.0.1", "http", "test.example"),
        ("trusted_proxies = []", FORGED, "127.0.0.1", "http", "test.example"),
        (TRUST, "", "127.0.0.1", "http", "test.example"),
        (TRUST, FORGED, "10.0.0.1, 127.0.0.1", "https", "shop.example"),
    ];
    for (trust, fields, client, proto, host) in cases {
        let origin = Origin::ok("hello");
        let sluice = Sluice::start(Config::to(&[origin.addr()]).server(trust));
        sluice.client().ask("/a", fields);
        let head = origin.only_request().head;
        assert_eq!(head.all("x-forwarded-for"), [client], "{trust} {fields}");
        assert_eq!(head.all("x-forwarded-proto"), [proto], "{trust} {fields}");
        assert_eq!(head.all("x-forwarded-host"), [host], "{trust} {fields}");
    }
}

#[test]
fn the_host_a_client_asked_for_is_passed_on() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let _ = sluice.client().get("/a");
    assert_eq!(origin.only_request().head.all("host"), ["test.example"]);
}

#[test]
fn every_request_has_one_id_that_both_ends_see() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    let made: Vec<String> =
        (0..2).map(|_| client.get("/a").field("x-request-id").expect("an id").to_owned()).collect();
    assert_ne!(made[0], made[1]);
    let given = client.ask("/a", "X-Request-Id: abc-123\r\n");
    assert_eq!(given.field("x-request-id"), Some("abc-123"));
    let sent: Vec<String> = origin
        .requests()
        .iter()
        .map(|request| request.head.all("x-request-id").join("|"))
        .collect();
    assert_eq!(sent, [&made[0], &made[1], "abc-123"]);
}

#[test]
fn a_request_without_id_and_trace_has_one_name_for_both() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    let trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    // A trace may be of many requests, and an id is of one.
    for (fields, alike) in
        [("", true), (trace, false), (trace, false), ("X-Request-Id: a\r\n", false), ("", true)]
    {
        client.ask("/a", fields);
        let requests = origin.requests();
        let head = &requests.last().expect("a request").head;
        let trace = head.field("traceparent").expect("a trace").split('-').nth(1);
        assert_eq!(head.field("x-request-id") == trace, alike, "{fields}: {head:?}");
    }
    let ids: std::collections::BTreeSet<_> = origin
        .requests()
        .iter()
        .map(|request| request.head.field("x-request-id").map(str::to_owned))
        .collect();
    assert_eq!(ids.len(), 5, "{ids:?}");
}

#[test]
fn a_trace_is_taken_or_begun() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let good = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n");
    let zero = format!("traceparent: 00-{}-00f067aa0ba902b7-01\r\n", "0".repeat(32));
    let cases = [
        (good.as_str(), true),
        ("", false),
        ("traceparent: nonsense\r\n", false),
        (zero.as_str(), false),
        ("traceparent: 00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01\r\n", false),
    ];
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for (number, (fields, kept)) in cases.into_iter().enumerate() {
        client.ask("/a", fields);
        let head = &origin.requests()[number].head;
        let [sent] = head.all("traceparent")[..] else { panic!("{fields}: {head:?}") };
        let parts: Vec<&str> = sent.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [2, 32, 16, 2], "{sent}");
        assert!(sent.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-')), "{sent}");
        assert!(parts[1].contains(|c| c != '0'), "{sent}");
        assert_eq!(parts[1] == TRACE, kept, "{fields} became {sent}");
    }
}

#[test]
fn nobody_can_claim_an_identity_in_a_field() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    sluice.client().ask(
        "/a",
        "X-User-Id: root\r\nx-user-roles: admin\r\nX-TENANT-ID: other\r\nX-Internal-Call: 1\r\n\
         X-Userland: fine\r\n",
    );
    let head = origin.only_request().head;
    for name in ["x-user-id", "x-user-roles", "x-tenant-id", "x-internal-call"] {
        assert_eq!(head.field(name), None, "{name}");
    }
    assert_eq!(head.field("x-userland"), Some("fine"));
}
