//! Which route answers, and what it changes on the way.

use sluice_tests::{Config, Origin, Sluice};

#[test]
fn the_most_specific_route_answers_whatever_the_order() {
    let origin = Origin::ok("everything else");
    let config = Config::to(&[origin.addr()])
        .respond("prefix", "/v1/{*rest}", "prefix")
        .respond("exact", "/v1/orders", "exact")
        .respond("parameter", "/v1/orders/{id}", "parameter")
        .respond("method", "POST /v1/orders", "method")
        .respond("host", "api.example/v1/orders", "host")
        .respond("wildcard", "*.api.example/v1/orders", "wildcard");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let cases = [
        ("GET", "a.example", "/elsewhere", "everything else"),
        ("GET", "a.example", "/v1/customers/7", "prefix"),
        ("GET", "a.example", "/v1/orders", "exact"),
        ("GET", "a.example", "/v1/orders?page=2", "exact"),
        ("GET", "a.example", "/v1/orders/7", "parameter"),
        ("GET", "a.example", "/v1/orders/7/lines", "prefix"),
        ("POST", "a.example", "/v1/orders", "method"),
        ("GET", "api.example", "/v1/orders", "host"),
        ("GET", "API.example:8080", "/v1/orders", "host"),
        ("GET", "acme.api.example", "/v1/orders", "wildcard"),
    ];
    for (method, host, path, expected) in cases {
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.read_response().text(), expected, "{method} {host}{path}");
    }
}

#[test]
fn a_guarded_path_has_no_other_spelling() {
    let origin = Origin::echo();
    let config = Config::to(&[origin.addr()]).respond("guard", "/secret/{*rest}", "guarded");
    let sluice = Sluice::start(config);
    for path in ["/secret/a", "//secret/a", "/%73ecret/a", "/x/../secret/a", "/./secret/a"] {
        let response = sluice.client().get(path);
        let guarded = response.status() == 400 || response.text() == "guarded";
        assert!(guarded, "{path} slipped past: {}", response.text());
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn a_route_rewrites_paths_and_fields() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nServer: secret/1.2\r\nX-Keep: 1\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let config = Config::to(&[origin.addr()]).more(
        "[route.changed]\nmatch = \"/v1/{*rest}\"\nto = \"app\"\n\
         strip_prefix = \"/v1\"\nadd_prefix = \"/x\"\n\
         request_headers = { set = { \"x-a\" = \"b\" }, remove = [\"x-c\"] }\n\
         response_headers = { set = { \"x-d\" = \"e\" }, remove = [\"server\"] }\n",
    );
    let sluice = Sluice::start(config);
    let response = sluice.client().ask("/v1/orders?q=1", "X-A: from-client\r\nX-C: gone\r\n");
    let head = origin.only_request().head;
    assert_eq!(head.line, "GET /x/orders?q=1 HTTP/1.1");
    assert_eq!(head.all("x-a"), ["b"]);
    assert_eq!(head.field("x-c"), None);
    assert_eq!(response.head.all("x-d"), ["e"]);
    assert_eq!(response.field("server"), None);
    assert_eq!(response.field("x-keep"), Some("1"));
}

#[test]
fn what_a_route_sets_stands_instead_of_what_the_gateway_writes() {
    let origin = Origin::ok("hello");
    let set = "set = { \"host\" = \"b\", \"x-request-id\" = \"mine\", \"x-forwarded-proto\" = \"https\" }";
    let told = "set = { \"date\" = \"never\", \"x-request-id\" = \"yours\" }";
    let config = Config::to(&[origin.addr()]).more(&format!(
        "[route.set]\nmatch = \"/set\"\nto = \"app\"\n\
         request_headers = {{ {set}, remove = [\"traceparent\"] }}\n\
         response_headers = {{ {told} }}\n\
         [route.own]\nmatch = \"/own\"\nrespond = {{ status = 200, body = \"a\" }}\n\
         response_headers = {{ set = {{ \"date\" = \"never\", \"content-type\" = \"text/x\" }} }}\n",
    ));
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let response = client.ask("/set", "X-Request-Id: a\r\n");
    let head = origin.only_request().head;
    for (name, expected) in [
        ("host", &["b"][..]),
        ("x-request-id", &["mine"]),
        ("x-forwarded-proto", &["https"]),
        ("x-forwarded-host", &["test.example"]),
        ("traceparent", &[]),
    ] {
        assert_eq!(head.all(name), expected, "{name}");
    }
    assert_eq!(
        (response.head.all("date"), response.head.all("x-request-id")),
        (vec!["never"], vec!["yours"])
    );
    let own = client.get("/own");
    assert_eq!(
        (own.head.all("date"), own.head.all("content-type")),
        (vec!["never"], vec!["text/x"])
    );
}

#[test]
fn the_gateway_answers_and_redirects_by_itself() {
    let origin = Origin::ok("never");
    let config = Config::to(&[origin.addr()]).respond("robots", "/robots.txt", "no robots").more(
        "[route.moved]\nmatch = \"/old\"\n\
         redirect = { to = \"https://new.example/\", status = 308 }\n",
    );
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let robots = client.get("/robots.txt");
    assert_eq!((robots.status(), robots.text().as_str()), (200, "no robots"));
    assert_eq!(robots.field("content-type"), Some("text/plain"));
    let moved = client.get("/old");
    assert_eq!((moved.status(), moved.field("location")), (308, Some("https://new.example/")));
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_route_can_look_at_fields_queries_and_cookies() {
    let origin = Origin::ok("plain");
    let mut config = Config::to(&[origin.addr()]);
    for (name, condition) in [
        ("header", "header = { x-beta = \"yes\" }"),
        ("query", "query = { beta = \"yes\" }"),
        ("cookie", "cookie = { beta = \"yes\" }"),
    ] {
        config = config.more(&format!(
            "[route.{name}]\nmatch = \"/{name}\"\nwhere = {{ {condition} }}\n\
             respond = {{ status = 200, body = \"{name}\" }}\n"
        ));
    }
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let cases = [
        ("/header", "", "plain"),
        ("/header", "X-Beta: yes\r\n", "header"),
        ("/query", "", "plain"),
        ("/query?a=b&beta=yes", "", "query"),
        ("/cookie", "Cookie: beta=no\r\n", "plain"),
        ("/cookie", "Cookie: a=b; beta=yes\r\n", "cookie"),
    ];
    for (target, fields, expected) in cases {
        assert_eq!(client.ask(target, fields).text(), expected, "{target} {fields}");
    }
}
