//! Which route a request takes.

mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::facts::Facts;
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::Plan;
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::Now;

const RESPOND: &str = "respond = { body = \"\" }";

fn routes(matches: &[(&str, &str)]) -> String {
    let route = |(name, text): &(&str, &str)| {
        let (text, also) = text.split_once(" ? ").unwrap_or((text, ""));
        let also = if also.is_empty() { String::new() } else { format!("where = {{ {also} }}") };
        format!("[route.{name}]\nmatch = {text:?}\n{RESPOND}\n{also}\n")
    };
    matches.iter().map(route).collect()
}

/// The name of the route; `-` for none, `405` when only the method is wrong.
fn find(plan: &Arc<Plan>, facts: &Facts<'_>) -> String {
    use sluice_policy::decision::{Decision, Event};
    use sluice_policy::flight::{Ending, Finish};

    let ledger = Arc::new(Ledger::new(8, [0; 16]));
    let mut policy = Policy::new(Arc::clone(plan), ledger, 0);
    let mut flight = policy.begin(Now::default(), facts);
    let name = flight.route().map(|route| route.name.clone());
    let decision = policy.decide(Now::default(), facts, &mut flight, Event::Arrived);
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(Now::default(), flight, ending);
    name.unwrap_or_else(|| match decision {
        Decision::Answer(answer) if answer.code == "route.none" => "-".to_owned(),
        Decision::Answer(answer) => answer.status.to_string(),
        other => panic!("{other:?}"),
    })
}

fn ask<'a>(method: &'a str, host: &'a str, path: &'a str) -> Facts<'a> {
    Facts { method, host, ..facts(path) }
}

#[test]
fn the_most_specific_route_wins_and_order_never_matters() {
    let written = [
        ("any", "/{*rest}"),
        ("get", "GET /{*rest}"),
        ("orders", "/v1/orders/{*rest}"),
        ("order", "/v1/orders/{id}"),
        ("open", "/v1/orders/open"),
        ("put-open", "PUT,POST /v1/orders/open"),
        ("wild", "*.acme.dev/{*rest}"),
        ("deep-wild", "*.eu.acme.dev/{*rest}"),
        ("api", "api.acme.dev/{*rest}"),
        ("api-a", "api.acme.dev/a"),
        ("params", "/p/{a}/{b}"),
        ("param-rest", "/p/{a}/{*rest}"),
        ("slash", "/dir/"),
    ];
    // (method, host, path, route)
    let table = [
        ("POST", "x.test", "/", "any"),
        ("GET", "x.test", "/", "get"),
        ("GET", "", "/", "get"),
        ("GET", "x.test", "/v1/orders", "orders"),
        ("GET", "x.test", "/v1/orders/", "orders"),
        ("GET", "x.test", "/v1/orders/7", "order"),
        ("GET", "x.test", "/v1/orders/7/items", "orders"),
        ("GET", "x.test", "/v1/orders/7/", "orders"),
        ("GET", "x.test", "/v1/orders/open", "open"),
        ("PUT", "x.test", "/v1/orders/open", "put-open"),
        ("GET", "x.test", "/v1/ordersx", "get"),
        ("GET", "x.test", "/V1/orders", "get"),
        ("GET", "a.acme.dev", "/", "wild"),
        ("GET", "b.a.acme.dev", "/v1/orders/7", "wild"),
        ("GET", "a.eu.acme.dev", "/", "deep-wild"),
        ("GET", "eu.acme.dev", "/", "wild"),
        ("GET", "acme.dev", "/", "get"),
        ("GET", "xacme.dev", "/", "get"),
        ("GET", ".acme.dev", "/", "get"),
        ("GET", "api.acme.dev", "/a", "api-a"),
        ("GET", "API.Acme.dev", "/b", "api"),
        ("GET", "api.acme.dev.", "/b", "api"),
        ("GET", "x.test", "/p/1/2", "params"),
        ("GET", "x.test", "/p/1", "param-rest"),
        ("GET", "x.test", "/p/1/2/3", "param-rest"),
        ("GET", "x.test", "/p/", "get"),
        ("GET", "x.test", "/dir/", "slash"),
        ("GET", "x.test", "/dir", "get"),
        ("OPTIONS", "x.test", "*", "-"),
    ];
    let mut order = written.to_vec();
    for turn in 0..written.len() {
        order.rotate_left(1);
        if turn % 2 == 0 {
            order.reverse();
        }
        let plan = written::plan(&routes(&order));
        for (method, host, path, route) in table {
            assert_eq!(find(&plan, &ask(method, host, path)), route, "{method} {host}{path}");
        }
    }
}

#[test]
fn more_conditions_are_more_specific_than_fewer() {
    let plan = written::plan(&routes(&[
        ("plain", "/a"),
        ("beta", "/a ? header = { x-beta = \"1\" }"),
        ("beta-eu", "/a ? header = { x-beta = \"1\" }, cookie = { zone = \"eu\" }"),
        ("inside", "/b ? from = [\"10.0.0.0/8\", \"::1/128\"]"),
    ]));
    let eu: &[(&str, &str)] = &[("X-Beta", "1"), ("Cookie", "a=b; zone=eu")];
    let inside = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
    let outside = IpAddr::V4(Ipv4Addr::new(11, 1, 2, 3));
    // (path, fields, client, route)
    let table = [
        ("/a", &[][..], inside, "plain"),
        ("/a", &eu[..1], inside, "beta"),
        ("/a", eu, inside, "beta-eu"),
        ("/a", &eu[1..], inside, "plain"),
        ("/b", &[][..], inside, "inside"),
        ("/b", &[][..], outside, "-"),
    ];
    for (path, fields, client, route) in table {
        let head = Head::new(fields);
        let facts = Facts { headers: head.headers(), client, ..facts(path) };
        assert_eq!(find(&plan, &facts), route, "{path} {fields:?} {client}");
    }
}

#[test]
fn a_method_that_no_route_takes_is_405_and_the_others_are_listed() {
    let plan = written::plan(&routes(&[
        ("get", "GET,HEAD /a/{id}"),
        ("put", "PUT /a/{*rest}"),
        ("beta", "PATCH /a/{id} ? header = { x-beta = \"1\" }"),
        ("else", "POST other.test/{*rest}"),
    ]));
    // (method, host, path, route)
    let table = [
        ("GET", "x.test", "/a/1", "get"),
        ("PUT", "x.test", "/a/1", "put"),
        ("POST", "x.test", "/a/1", "405"),
        ("get", "x.test", "/a/1", "405"),
        ("POST", "x.test", "/b", "-"),
        ("POST", "other.test", "/a/1", "else"),
        ("DELETE", "other.test", "/a/1", "405"),
        ("DELETE", "other.test", "/b", "405"),
    ];
    for (method, host, path, route) in table {
        assert_eq!(find(&plan, &ask(method, host, path)), route, "{method} {host}{path}");
    }
    let allowed = |host, path| plan.allowed_methods(&ask("POST", host, path));
    assert_eq!(allowed("x.test", "/a/1"), ["GET", "HEAD", "PUT"]);
    assert_eq!(allowed("other.test", "/a/1"), ["GET", "HEAD", "POST", "PUT"]);
    assert_eq!(allowed("x.test", "/b"), Vec::<&str>::new());
}

#[test]
fn equal_routes_are_a_problem_that_names_both() {
    // (one, other, whether they tie)
    let table = [
        ("/a", "/a", true),
        ("/a", "/b", false),
        ("/a", "/a/", false),
        ("/{x}", "/{y}", true),
        ("/{x}/b", "/a/{y}", true),
        ("/{x}/b", "/a/b", false),
        ("/a/{*rest}", "/a/{*other}", true),
        ("/a/{*rest}", "/b/{*rest}", false),
        ("/{x}/{*rest}", "/{y}/{*rest}", true),
        ("GET /a", "POST /a", false),
        ("GET,PUT /a", "POST,PUT /a", true),
        ("GET /a", "/a", false),
        ("a.test/a", "b.test/a", false),
        ("A.test/a", "a.test/a", true),
        ("*.a.test/a", "*.b.test/a", false),
        ("*.a.test/a", "*.x.a.test/a", false),
        ("/a ? header = { a = \"1\" }", "/a ? header = { a = \"2\" }", false),
        ("/a ? header = { a = \"1\" }", "/a ? header = { b = \"2\" }", true),
        ("/a ? header = { a = \"1\" }", "/a ? query = { a = \"2\" }", true),
        ("/a ? cookie = { a = \"*\" }", "/a ? cookie = { a = \"2\" }", true),
        ("/a ? from = [\"10.0.0.0/8\"]", "/a ? from = [\"11.0.0.0/8\"]", false),
        ("/a ? from = [\"10.0.0.0/8\"]", "/a ? from = [\"10.1.0.0/16\"]", true),
        ("/a ? from = [\"10.0.0.0/8\"]", "/a", false),
    ];
    for (one, other, tie) in table {
        let problems = written::compile(routes(&[("one", one), ("other", other)]).parse().unwrap());
        let problems = problems.err().unwrap_or_default();
        let named = |p: &sluice_policy::plan::Problem| {
            p.message.contains("`one`") && p.message.contains("`other`")
        };
        assert_eq!(problems.len(), usize::from(tie), "{one} | {other}: {problems:?}");
        assert!(problems.iter().all(named), "{one} | {other}: {problems:?}");
    }
}
