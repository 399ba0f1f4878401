//! The time that is left: told to servers for each attempt, and shortened by who has less.

use std::time::{Duration, Instant};

use sluice_tests::{Config, Origin, Sluice, origin};

const FIELD: &str = "x-request-timeout-ms";

fn told(origin: &Origin, field: &str) -> Vec<String> {
    let requests = origin.requests();
    let told = |r: &sluice_tests::Request| r.head.field(field).unwrap_or("none").to_owned();
    requests.iter().map(told).collect()
}

fn millis(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

#[test]
fn a_server_is_told_how_much_time_is_left() {
    let origin = Origin::ok("hello");
    for (route, asked, low, high) in [
        ("timeout = \"2s\"", "", 1_900, 2_000),
        ("timeout = \"2s\"", "X-Request-Timeout-Ms: 500\r\n", 400, 500),
        ("timeout = \"2s\"", "x-request-timeout-ms: 90000\r\n", 1_900, 2_000),
        ("timeout = \"2s\"", "x-request-timeout-ms: soon\r\n", 1_900, 2_000),
        ("timeout = \"2s\"", "x-request-timeout-ms: 0\r\n", 1_900, 2_000),
        ("timeout = \"2s\"\nretries = { per_try = \"300ms\" }", "", 200, 300),
    ] {
        let sluice = Sluice::start(Config::to(&[origin.addr()]).route(route));
        assert_eq!(sluice.client().ask("/a", asked).status(), 200);
        let request = origin.requests().pop().expect("a request");
        let fields =
            request.head.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(FIELD));
        assert_eq!(fields.count(), 1, "{route} {asked}");
        let left = millis(request.head.field(FIELD).unwrap_or_default());
        assert!((low..=high).contains(&left), "{route} {asked}: {left}");
    }
}

#[test]
fn the_field_has_the_name_and_form_that_was_configured() {
    let origin = Origin::ok("hello");
    for (line, field, asked) in [
        ("deadline_header = \"grpc-timeout\"", "grpc-timeout", "grpc-timeout: 700m\r\n"),
        ("deadline_header = \"X-Deadline\"", "x-deadline", "X-Deadline: 700\r\n"),
        ("deadline_header = \"off\"", FIELD, "x-request-timeout-ms: 700\r\n"),
    ] {
        let sluice = Sluice::start(Config::to(&[origin.addr()]).server(line));
        assert_eq!(sluice.client().ask("/a", asked).status(), 200);
        let told = told(&origin, field).pop().expect("a request");
        if line.contains("off") {
            assert_eq!(told, "700", "a field like any other");
            continue;
        }
        let number = told.strip_suffix('m').unwrap_or(&told);
        assert_eq!(told.ends_with('m'), field == "grpc-timeout", "{told}");
        assert!((600..=700).contains(&millis(number)), "{told}");
    }
}

#[test]
fn a_client_that_has_less_time_than_the_route_is_not_waited_for_longer() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    let began = Instant::now();
    let response = sluice.client().ask("/a", "X-Request-Timeout-Ms: 200\r\n");
    assert_eq!(response.status(), 504);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    origin.wait_for_open(0);
}

#[test]
fn each_attempt_is_told_what_is_left_for_it() {
    // The first time too late, the second time at once.
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        if connection.number == 0 {
            return connection.stall();
        }
        connection.write(origin::ok("hello"))
    });
    let retries = "timeout = \"900ms\"\nretries = { on = [\"timeout\"], per_try = \"600ms\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route(retries));
    assert_eq!(sluice.client().get("/a").status(), 200);
    let told: Vec<u64> = told(&origin, FIELD).iter().map(|text| millis(text)).collect();
    assert!(told[0] <= 600 && told[0] > 500, "{told:?}");
    assert!(told[1] <= 300, "the second has what the first left: {told:?}");
}

#[test]
fn an_upload_that_takes_longer_than_the_route_is_not_cut_while_bytes_come() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route("timeout = \"400ms\""));
    let mut client = sluice.client();
    client.send("PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 20\r\n\r\n");
    for _ in 0..20 {
        // A second in all.
        sluice_tests::wait::moment();
        client.send("x");
    }
    assert_eq!(client.read_response().status(), 200);
    assert_eq!(origin.only_request().body.len(), 20);
}
