//! Connections that are closed while their client may still be sending.

use sluice_tests::{Origin, Sluice};

#[test]
fn who_still_sends_when_refused_has_its_answer_and_an_end_in_order() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\nno field\r\n\r\n");
    assert_eq!(client.read_response().status(), 400);
    // Closed at once, the connection would be reset by what comes now.
    for _ in 0..8 {
        client.send(vec![b'a'; 20_000]);
    }
    client.half_close();
    assert!(client.closes_in_order());
    sluice.wait_for_metric("sluice_connections_open", 0.0);
}

#[test]
fn who_stays_when_refused_is_not_waited_for_without_end() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\nno field\r\n\r\n");
    assert_eq!(client.read_response().status(), 400);
    // It neither sends nor closes.
    sluice.wait_for_metric("sluice_connections_open", 0.0);
    assert!(origin.requests().is_empty());
}
