//! What is judged is what is meant: paths in one spelling, clients by the address that can be
//! believed, conditions together.

use sluice_tests::{Config, Origin, Sluice};

const TRUST: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";

#[test]
fn the_server_gets_the_path_that_was_judged() {
    let origin = Origin::echo();
    let sluice = Sluice::start(Config::to(&[origin.addr()]));
    // Oddities of structure are gone; mere escapes are the client's own spelling.
    let cases = [
        ("/a/b", Some("/a/b")),
        ("//a", Some("/a")),
        ("/a//b", Some("/a/b")),
        ("/./a", Some("/a")),
        ("/x/../a", Some("/a")),
        ("/%73ecret", Some("/%73ecret")),
        ("/a%20b", Some("/a%20b")),
        ("/caf%C3%A9", Some("/caf%C3%A9")),
        ("/a?q=//x/../y", Some("/a?q=//x/../y")),
        ("/a%2Fb", None),
        ("/a%00b", None),
        ("/a%zz", None),
    ];
    for (sent, arrived) in cases {
        let response = sluice.client().get(sent);
        let line = response.text().lines().next().unwrap_or_default().to_owned();
        match arrived {
            Some(path) => assert_eq!(line, format!("GET {path} HTTP/1.1"), "{sent}"),
            None => assert_eq!(response.status(), 400, "{sent}: {line}"),
        }
    }
    let keeping = Config::to(&[origin.addr()]).server("encoded_slashes = \"keep\"");
    let response = Sluice::start(keeping).client().get("/a%2Fb");
    assert!(response.text().starts_with("GET /a%2Fb HTTP/1.1\n"), "{}", response.text());
}

#[test]
fn a_guarded_path_is_guarded_in_every_spelling() {
    let origin = Origin::ok("slipped past");
    let config = Config::to(&[origin.addr()]).respond("guard", "/secret", "guarded");
    let sluice = Sluice::start(config);
    for path in
        ["/secret", "//secret", "/%73ecret", "/%73%65cret", "/./secret", "/a/../secret", "/secret?"]
    {
        assert_eq!(sluice.client().get(path).text(), "guarded", "{path}");
    }
    // Other names, which no reading makes the guarded one.
    for path in ["/Secret", "/secrets", "/a/secret"] {
        assert_eq!(sluice.client().get(path).text(), "slipped past", "{path}");
    }
}

#[test]
fn address_lists_judge_the_client_that_trusted_proxies_name() {
    let cases = [
        ("trusted_proxies = []", "192.0.2.7", 403, "nobody is believed"),
        (TRUST, "192.0.2.7", 200, "named by a trusted proxy"),
        (TRUST, "192.0.2.8", 403, "named, and not allowed"),
        (TRUST, "192.0.2.7, 10.1.1.1", 200, "two trusted proxies in a row"),
        (TRUST, "192.0.2.7, 198.51.100.1", 403, "forged to the left of a stranger"),
        (TRUST, "192.0.2.8, 192.0.2.7", 200, "counted from the right"),
        (TRUST, "nonsense", 403, "the proxy itself, if what it says can't be read"),
        (TRUST, "", 403, "the proxy itself"),
    ];
    for (trust, forwarded, status, why) in cases {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()])
            .server(trust)
            .route("addresses = { allow = [\"192.0.2.7\"] }");
        let sluice = Sluice::start(config);
        let fields = format!("X-Forwarded-For: {forwarded}\r\n");
        let fields = if forwarded.is_empty() { "" } else { fields.as_str() };
        let response = sluice.client().ask("/a", fields);
        assert_eq!(response.status(), status, "{why}: {forwarded:?}");
    }
}

#[test]
fn all_conditions_of_a_route_must_hold() {
    let origin = Origin::ok("plain");
    let config = Config::to(&[origin.addr()]).server(TRUST).more(
        "[route.staff]\nmatch = \"/{*rest}\"\n\
         where = { from = [\"192.0.2.0/24\"], header = { x-team = \"*\" }, query = { v = \"2\" } }\n\
         respond = { body = \"staff\" }\n",
    );
    let sluice = Sluice::start(config);
    let from = "X-Forwarded-For: 192.0.2.9\r\n";
    let cases = [
        ("/a?v=2", format!("{from}X-Team: blue\r\n"), "staff"),
        ("/a?v=2", format!("{from}X-Team: red\r\n"), "staff"),
        ("/a?v=2", from.to_owned(), "plain"),
        ("/a?v=3", format!("{from}X-Team: blue\r\n"), "plain"),
        ("/a?v=2", "X-Team: blue\r\n".to_owned(), "plain"),
        ("/a?v=2", "X-Forwarded-For: 192.0.3.9\r\nX-Team: blue\r\n".to_owned(), "plain"),
    ];
    for (target, fields, expected) in cases {
        assert_eq!(sluice.client().ask(target, &fields).text(), expected, "{target} {fields}");
    }
}

#[test]
fn a_redirect_takes_the_requests_path_and_query_along() {
    let config = Config::to(&["127.0.0.1:9".parse().unwrap()]).more(
        "[route.bare]\nmatch = \"acme.example/{*rest}\"\n\
         redirect = { to = \"https://www.acme.example{uri}\", status = 301 }\n\
         [route.default]\nmatch = \"old.example/{*rest}\"\nredirect = { to = \"https://new.example/\" }\n",
    );
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let cases = [
        ("acme.example", "/a/b?c=d&e", 301, "https://www.acme.example/a/b?c=d&e"),
        ("acme.example", "/", 301, "https://www.acme.example/"),
        // A path that begins with two slashes would name another host to some clients.
        ("acme.example", "//evil.example/", 301, "https://www.acme.example/evil.example/"),
        ("old.example", "/a", 308, "https://new.example/"),
    ];
    for (host, target, status, location) in cases {
        let moved = client.ask_host(host, target, "");
        assert_eq!((moved.status(), moved.field("location")), (status, Some(location)), "{target}");
    }
}

#[test]
fn prefixes_are_taken_off_and_put_on_at_segments() {
    let origin = Origin::echo();
    let route = |name: &str, matching: &str, lines: &str| {
        format!("[route.{name}]\nmatch = \"{matching}\"\nto = \"app\"\n{lines}\n")
    };
    let config = Config::to(&[origin.addr()])
        .more(&route("strip", "/api/{*rest}", "strip_prefix = \"/api\""))
        .more(&route("add", "/add/{*rest}", "add_prefix = \"/base\""))
        .more(&route("both", "/v1/{*rest}", "strip_prefix = \"/v1\"\nadd_prefix = \"/v2\""));
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let cases = [
        ("/api/a?b=/api/c", "/a?b=/api/c"),
        ("/api/", "/"),
        ("/apiary", "/apiary"),
        ("/add/a", "/base/add/a"),
        ("/v1/a%20b", "/v2/a%20b"),
        ("/%61pi/a", "/a"),
    ];
    for (sent, arrived) in cases {
        let line = client.get(sent).text();
        assert_eq!(line.lines().next(), Some(&*format!("GET {arrived} HTTP/1.1")), "{sent}");
    }
}
