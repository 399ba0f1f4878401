//! Requests with a body that are sent again: only what may be, and every byte of it.

use sluice_tests::{Config, Origin, Sluice, origin};

const ROUTE: &str = "retries = { on = [\"reset\", \"503\"] }";
const ILL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 3\r\n\r\nill";

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|i| b'a' + u8::try_from(i % 26).unwrap_or(0)).collect()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(7000) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\nX-Sum: 7\r\n\r\n");
    out
}

/// Reads each request whole and then resets.
fn resetting() -> Origin {
    Origin::new(|connection| {
        connection.read_request()?;
        connection.reset()
    })
}

fn before(first: &Origin, second: &Origin, route: &str) -> Sluice {
    Sluice::start(Config::to(&[first.addr(), second.addr()]).route(route))
}

#[test]
fn an_idempotent_request_with_a_short_body_is_sent_again_with_every_byte() {
    let (ill, well) = (resetting(), Origin::ok("well"));
    let sluice = before(&ill, &well, ROUTE);
    let mut client = sluice.client();
    let mut sent = 0;
    for (method, length) in [("PUT", 5), ("DELETE", 20_000), ("PUT", 64 << 10)] {
        for chunks in [false, true] {
            let body = body(length);
            let (field, framed) = match chunks {
                false => (format!("Content-Length: {length}"), body.clone()),
                true => ("Transfer-Encoding: chunked".to_owned(), chunked(&body)),
            };
            // One of the two goes to the server that is ill first.
            for _ in 0..2 {
                client.send(format!("{method} /a HTTP/1.1\r\nHost: a.example\r\n{field}\r\n\r\n"));
                client.send(&framed);
                let response = client.read_response();
                assert_eq!((response.status(), response.text().as_str()), (200, "well"));
                sent += 1;
                let last = well.requests().pop().expect("a request");
                assert!(last.body == body, "{method} {length}: {} bytes came", last.body.len());
                assert_eq!(chunks, !last.trailers.is_empty(), "trailers come again, too");
            }
        }
    }
    assert_eq!((ill.requests().len(), well.requests().len()), (sent / 2, sent));
}

#[test]
fn a_body_that_broke_off_half_way_goes_on_at_the_next_server() {
    // Takes a part of the body, with more to come, and resets.
    let ill = Origin::new(|connection| {
        connection.read_head()?;
        connection.read_piece()?;
        connection.reset()
    });
    let well = Origin::ok("well");
    let sluice = before(&ill, &well, ROUTE);
    let body = body(60_000);
    for number in 0..4 {
        let mut client = sluice.client();
        client.send("PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 60000\r\n\r\n");
        for piece in body.chunks(9_000) {
            client.send(piece);
        }
        assert_eq!(client.read_response().text(), "well", "request {number}");
        assert!(well.requests().pop().expect("a request").body == body);
        assert_eq!(client.get("/kept").status(), 200, "the connection is kept");
    }
}

#[test]
fn a_status_that_is_not_good_enough_is_tried_elsewhere_with_the_body() {
    // Answers as soon as the head is here; most of the body is yet to come.
    let ill = Origin::new(|connection| {
        connection.read_head()?;
        connection.write(ILL)?;
        connection.stall()
    });
    let well = Origin::ok("well");
    let sluice = before(&ill, &well, ROUTE);
    let body = body(50_000);
    for _ in 0..4 {
        let mut client = sluice.client();
        client.send("PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 50000\r\n\r\n");
        client.send(&body[..20_000]);
        client.send(&body[20_000..]);
        assert_eq!(client.read_response().text(), "well");
        assert!(well.requests().pop().expect("a request").body == body);
    }
    assert_eq!(well.requests().len(), 4);
}

#[test]
fn what_may_have_had_an_effect_or_is_too_long_to_be_kept_is_sent_once() {
    for (method, length, route) in [
        ("POST", 5, ROUTE),
        ("PATCH", 20_000, ROUTE),
        ("PUT", (64 << 10) + 1, ROUTE),
        ("PUT", 20_000, "retries = 3"),
        ("PUT", 20_000, "retries = { on = [\"reset\"], body = \"10KiB\" }"),
    ] {
        let (first, second) = (resetting(), resetting());
        let sluice = before(&first, &second, route);
        let mut client = sluice.client();
        client.send(format!(
            "{method} /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(body(length));
        let what = format!("{method} {length} {route}");
        assert_eq!(client.read_response().status(), 502, "{what}");
        assert_eq!(first.requests().len() + second.requests().len(), 1, "{what}");
    }
}

#[test]
fn posts_to_a_server_that_resets_half_of_them_are_never_doubled() {
    const POSTS: usize = 2000;
    let origin = Origin::new(|connection| {
        loop {
            let request = connection.read_request()?;
            match request.body.last().is_some_and(|last| last % 2 == 0) {
                true => return connection.reset(),
                false => connection.write(origin::ok("done"))?,
            }
        }
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route(ROUTE));
    std::thread::scope(|scope| {
        for part in 0..4 {
            let sluice = &sluice;
            scope.spawn(move || {
                let mut client = sluice.client();
                for number in 0..POSTS / 4 {
                    let body = format!("{:06}", part * 1_000 + number);
                    client.send(format!(
                        "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 6\r\n\r\n{body}"
                    ));
                    assert!([200, 502].contains(&client.read_response().status()));
                }
            });
        }
    });
    let mut seen: Vec<Vec<u8>> = origin.requests().into_iter().map(|r| r.body).collect();
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((all, seen.len()), (POSTS, POSTS));
}
