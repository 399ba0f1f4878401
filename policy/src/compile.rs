//! From what was written to what is meant. Every problem is reported, not the first.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::admit::Rules;
use crate::admit::named::{Limits, Whose};
use crate::degrade::{Fallback, FallbackSpec, Source};
use crate::draft::breaker::{BreakerSpec, EjectSpec};
use crate::draft::{
    Draft, QueueSpec, RedirectSpec, RespondSpec, RouteSpec, ServerSpec, UpstreamSpec,
};
use crate::header;
use crate::health::Check;
use crate::plan::{
    Endpoint, EndpointKey, GroupKey, Plan, Problem, Reply, ReplyId, Rewrite, Route, RouteKey,
    Spread, Target, Timeouts, Upstream, UpstreamId, UpstreamKey,
};
use crate::route::{Matcher, Table};
use crate::steer::guard::{Breaker, Eject, Resilience};
use crate::steer::order::turn;
use crate::unit::{Ratio, Span};

const CONNECT: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(30);
const ROUTE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTIONS: u32 = 64;
const LABELS_MAX: usize = 16;
const LABEL_MAX: usize = 64;
const QUEUE: u32 = 16;
const QUEUE_WAIT: Duration = Duration::from_millis(50);

pub(crate) fn compile(draft: Draft) -> Result<Plan, Vec<Problem>> {
    let mut work = Work { zone: draft.zone, ..Work::default() };
    for (name, spec) in draft.upstreams {
        work.upstream(name, spec);
    }
    let mut limits = Limits::compile(draft.limits, draft.nodes, &mut work.problems);
    limits.adopt_tenants(draft.tenants, &mut work.problems);
    let names: Vec<_> = draft.routes.iter().map(|(name, ..)| name.clone()).collect();
    limits.check_routes(&names, &mut work.problems);
    let mut rules = Rules::default();
    let (mut routes, mut matchers) = (Vec::new(), Vec::new());
    let defaults = limits.defaults();
    for (name, spec, mut specs) in draft.routes {
        let whose = if specs.limits.is_some() { Whose::Route } else { Whose::Default };
        specs.limits = specs.limits.or_else(|| defaults.clone());
        let (path, key) = (format!("route.{name}"), RouteKey::of(&[&name]));
        rules.push(specs, key, &path, (&limits, whose), &mut work.problems);
        let matcher = Matcher::compile(&spec, &path, &mut work.problems);
        matchers.extend(matcher.map(|matcher| (name.clone(), matcher)));
        let watched = limits.watching(&name);
        let route = work.route(name, key, spec, &path);
        routes.extend(route.map(|route| Route { watched, ..route }));
    }
    let shed = draft.shed.compile(&mut work.problems);
    let table = Table::new(matchers, &mut work.problems);
    let Work { upstreams, replies, problems, .. } = work;
    if problems.is_empty() {
        Ok(Plan { routes, upstreams, replies, limits, proxied: draft.proxied, shed, rules, table })
    } else {
        Err(problems)
    }
}

#[derive(Default)]
struct Work {
    upstreams: Vec<Upstream>,
    replies: Vec<Reply>,
    endpoints: usize,
    zone: Option<String>,
    problems: Vec<Problem>,
}

impl Work {
    fn problem(&mut self, path: &str, message: String, hint: &str) {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        self.problems.push(Problem { path: path.to_owned(), message, hint });
    }

    fn upstream(&mut self, name: String, spec: UpstreamSpec) {
        let path = format!("upstream.{name}");
        if spec.servers.is_empty() {
            let hint = "write `servers = [\"10.0.0.1:9000\"]`";
            self.problem(&format!("{path}.servers"), "no server".to_owned(), hint);
        }
        if spec.servers.len() > usize::from(u16::MAX) {
            let message = format!("{} servers", spec.servers.len());
            self.problem(&format!("{path}.servers"), message, "at most 65535");
        }
        if spec.connections == Some(0) {
            let hint = "write at least 1";
            self.problem(&format!("{path}.connections"), "no connection".to_owned(), hint);
        }
        let timeout = |work: &mut Self, key: &str, span: Option<Span>| {
            work.span(&format!("{path}.timeout.{key}"), span)
        };
        let timeouts = Timeouts {
            connect: timeout(self, "connect", spec.timeout.connect).unwrap_or(CONNECT),
            first_byte: timeout(self, "first_byte", spec.timeout.first_byte),
            idle: timeout(self, "idle", spec.timeout.idle).unwrap_or(IDLE),
        };
        let (queue_max, queue_wait) = self.queue(spec.queue, &format!("{path}.queue"));
        let servers = spec.servers.len();
        let resilience = self.resilience(spec.breaker, spec.eject, servers, &path);
        let endpoints = self.endpoints(&name, spec.servers, &path);
        let weights: Vec<u32> = endpoints.iter().map(|e| e.weight).collect();
        let sums = weights.iter().scan(0, |sum, &weight| {
            *sum += u64::from(weight);
            Some(*sum)
        });
        let balance = spec.balance.compile(&format!("{path}.balance"), &mut self.problems);
        let near = endpoints.iter().filter(|e| e.near).count();
        let spread = Spread {
            balance,
            zoned: spec.prefer_zone && near > 0 && near < endpoints.len(),
            turn: turn(&weights),
            sums: sums.collect(),
            first: self.endpoints,
        };
        self.endpoints += endpoints.len();
        let problems = &mut self.problems;
        let adaptive = spec
            .adaptive
            .and_then(|adaptive| adaptive.compile(&format!("{path}.adaptive"), problems));
        let health =
            spec.health.map(|health| Check::compile(health, &format!("{path}.health"), problems));
        self.upstreams.push(Upstream {
            key: UpstreamKey::of(&[&name]),
            name,
            endpoints,
            connections_max: spec.connections.unwrap_or(CONNECTIONS),
            queue_max,
            queue_wait,
            keepalive: spec.keepalive.map_or(KEEPALIVE, |span| span.0),
            spread,
            timeouts,
            resilience,
            adaptive,
            health,
        });
    }

    fn queue(&mut self, spec: Option<QueueSpec>, path: &str) -> (u32, Duration) {
        let Some(QueueSpec { max, wait }) = spec else { return (0, Duration::ZERO) };
        if max == Some(0) {
            let hint = "write at least 1, or leave `queue` out";
            self.problem(&format!("{path}.max"), "nobody may wait".to_owned(), hint);
        }
        let wait = self.span(&format!("{path}.wait"), wait);
        (max.unwrap_or(QUEUE), wait.unwrap_or(QUEUE_WAIT))
    }

    fn resilience(
        &mut self,
        breaker: Option<BreakerSpec>,
        eject: Option<EjectSpec>,
        servers: usize,
        path: &str,
    ) -> Resilience {
        let problems = &mut self.problems;
        let mut compile = |spec: &BreakerSpec, path: &str| {
            let (rule, failures) = spec.compile(path, problems);
            Breaker { rule, failures }
        };
        let whole = breaker.as_ref().map(|spec| compile(spec, &format!("{path}.breaker")));
        let (own, max, panic, outliers) = match eject {
            None if breaker.is_some() => (None, None, None, false),
            None | Some(EjectSpec::Off) => return Resilience { breaker: whole, eject: None },
            Some(EjectSpec::On { breaker, max, panic, outliers }) => {
                (breaker, max, panic, outliers)
            }
        };
        let each = own.map(|spec| compile(&spec, &format!("{path}.eject.breaker")));
        let each = each.or_else(|| whole.clone());
        let each = each.unwrap_or_else(|| compile(&BreakerSpec::standard(), path));
        let max = max.unwrap_or(Ratio(500_000)).0.min(1_000_000) as usize;
        let eject = Eject {
            breaker: each,
            out_max: (servers * max / 1_000_000).max(1),
            panic: panic.unwrap_or(Ratio(500_000)),
            outliers,
        };
        // To take out the only one would leave none.
        Resilience { breaker: whole, eject: (servers > 1).then_some(eject) }
    }

    fn endpoints(&mut self, name: &str, servers: Vec<ServerSpec>, path: &str) -> Vec<Endpoint> {
        let mut seen = BTreeMap::new();
        let mut endpoints = Vec::with_capacity(servers.len());
        for (i, server) in servers.into_iter().enumerate() {
            let path = format!("{path}.servers[{i}]");
            if let Err(bad) = server.addr.parse::<ServerSpec>() {
                self.problem(&path, bad.message, &bad.hint);
            }
            if let Some(first) = seen.insert(server.addr.clone(), i) {
                let message = format!("`{}` is already servers[{first}]", server.addr);
                self.problem(&path, message, "write each server once, with a `weight`");
            }
            self.labels(&server, &path);
            let zone = server.labels.get("zone");
            endpoints.push(Endpoint {
                key: EndpointKey::of(&[name, &server.addr]),
                near: zone.is_some() && zone == self.zone.as_ref(),
                address: server.addr,
                weight: server.weight,
                labels: server.labels,
            });
        }
        endpoints
    }

    fn labels(&mut self, server: &ServerSpec, path: &str) {
        if server.labels.len() > LABELS_MAX {
            let message = format!("{} labels", server.labels.len());
            self.problem(&format!("{path}.labels"), message, "at most 16");
        }
        for (name, value) in &server.labels {
            let path = format!("{path}.labels.{name}");
            if !is_name(name) || name.bytes().any(|b| b.is_ascii_uppercase()) {
                let hint = "a name is lower case letters, digits, - and _";
                self.problem(&path, "not the name of a label".to_owned(), hint);
            }
            if value.is_empty() || value.len() > LABEL_MAX || value.contains(char::is_control) {
                let message = format!("`{}` is not a label", value.escape_debug());
                self.problem(&path, message, "write 1 to 64 characters");
            }
        }
    }

    fn route(&mut self, name: String, key: RouteKey, spec: RouteSpec, path: &str) -> Option<Route> {
        let timeout = self.span(&format!("{path}.timeout"), spec.timeout);
        let retry = spec.retries.unwrap_or_default();
        let retry = retry.compile(&format!("{path}.retries"), &mut self.problems);
        for (key, prefix) in
            [("strip_prefix", &spec.strip_prefix), ("add_prefix", &spec.add_prefix)]
        {
            if let Some(prefix) = prefix {
                self.prefix(&format!("{path}.{key}"), prefix);
            }
        }
        let problems = &mut self.problems;
        let rewrite = Rewrite {
            strip_prefix: spec.strip_prefix.map(untrailed),
            add_prefix: spec.add_prefix.map(untrailed),
            request_headers: header::compile(
                spec.request_headers,
                &format!("{path}.request_headers"),
                problems,
            ),
            response_headers: header::compile(
                spec.response_headers,
                &format!("{path}.response_headers"),
                problems,
            ),
        };
        let fallback =
            spec.fallback.and_then(|spec| self.fallback(spec, &format!("{path}.fallback")));
        let depends = format!("{:?} {rewrite:?}", spec.to);
        let cache = spec
            .cache
            .map(|spec| spec.compile(&format!("{path}.cache"), &depends, &mut self.problems));
        if spec.group.as_ref().is_some_and(|group| !is_name(group)) {
            let message = format!("{:?} cannot be the name of a group", spec.group);
            let hint = "a name is letters, digits, - and _";
            self.problem(&format!("{path}.group"), message, hint);
        }
        let target = self.target(spec.to, spec.redirect, spec.respond, path)?;
        Some(Route {
            name,
            key,
            watched: Box::default(),
            rewrite,
            group: spec.group.map(|name| {
                let key = GroupKey::of(&[&name]);
                (name, key)
            }),
            vital: spec.vital,
            priority: spec.priority,
            fallback,
            cache,
            target,
            timeout: timeout.unwrap_or(ROUTE_TIMEOUT),
            retry,
        })
    }

    fn target(
        &mut self,
        to: Option<String>,
        redirect: Option<RedirectSpec>,
        respond: Option<RespondSpec>,
        path: &str,
    ) -> Option<Target> {
        match (to, redirect, respond) {
            (Some(to), None, None) => {
                let found = self.upstreams.iter().position(|u| u.name == to);
                if found.is_none() {
                    let names: Vec<_> = self.upstreams.iter().map(|u| u.name.as_str()).collect();
                    let hint = match names.as_slice() {
                        [] => format!("write a table [upstream.{to}]"),
                        names => format!("there are: {}", names.join(", ")),
                    };
                    let message = format!("no upstream is called `{to}`");
                    self.problem(&format!("{path}.to"), message, &hint);
                }
                Some(Target::Upstream(UpstreamId(u32::try_from(found?).ok()?)))
            }
            (None, Some(redirect), None) => {
                let reply = self.redirect(redirect, &format!("{path}.redirect"));
                self.reply(reply).map(Target::Redirect)
            }
            (None, None, Some(respond)) => {
                let reply = self.respond(respond, &format!("{path}.respond"));
                self.reply(reply).map(Target::Respond)
            }
            (None, None, None) => {
                let hint = "write `to`, `redirect` or `respond`";
                self.problem(path, "nothing becomes of its requests".to_owned(), hint);
                None
            }
            (Some(_), _, _) | (_, Some(_), Some(_)) => {
                let hint = "write one of `to`, `redirect` and `respond`";
                self.problem(path, "more than one thing becomes of its requests".to_owned(), hint);
                None
            }
        }
    }

    fn fallback(&mut self, spec: FallbackSpec, path: &str) -> Option<Fallback> {
        let FallbackSpec { on, status, body, file, content_type } = spec;
        if on.as_ref().is_some_and(Vec::is_empty) {
            let hint = "name a cause, or leave `on` out";
            self.problem(&format!("{path}.on"), "it never comes up".to_owned(), hint);
        }
        if body.is_some() && file.is_some() {
            let hint = "write one of `body` and `file`";
            self.problem(&format!("{path}.file"), "there is a body already".to_owned(), hint);
        }
        if file.as_ref().is_some_and(|file| !file.starts_with('/')) {
            let message = format!("{file:?} is not a full path");
            let hint = "write it like \"/etc/sluice/sorry.html\"";
            self.problem(&format!("{path}.file"), message, hint);
        }
        let empty = body.as_ref().is_none_or(String::is_empty) && file.is_none();
        let source = if empty { Source::Empty } else { Source::Static };
        let status = status.or(Some(503));
        let spec = RespondSpec { status, body: body.unwrap_or_default(), content_type };
        let reply = Reply { file, ..self.respond(spec, path) };
        Some(Fallback::new(on.as_deref(), self.reply(reply)?, source))
    }

    fn redirect(&mut self, spec: RedirectSpec, path: &str) -> Reply {
        let status = spec.status.unwrap_or(308);
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            let hint = "301, 302, 303, 307 or 308";
            self.problem(&format!("{path}.status"), format!("{status} does not redirect"), hint);
        }
        let plain = spec.to.strip_suffix("{uri}").unwrap_or(&spec.to);
        let rooted = ["/", "http://", "https://"].iter().any(|start| plain.starts_with(start));
        let graphic = plain.bytes().all(|b| b.is_ascii_graphic() && !b"{}<>\"\\^`|".contains(&b));
        if !rooted || !graphic {
            let hint = "write a URL or a path; it may end in `{uri}`";
            let message = format!("`{}` is not a place to go", spec.to.escape_debug());
            self.problem(&format!("{path}.to"), message, hint);
        }
        let content_type = "text/plain; charset=utf-8".to_owned();
        Reply { status, location: Some(spec.to), content_type, body: [].into(), file: None }
    }

    fn respond(&mut self, spec: RespondSpec, path: &str) -> Reply {
        let status = spec.status.unwrap_or(200);
        if !(200..=599).contains(&status) {
            let hint = "a final status is from 200 to 599";
            self.problem(&format!("{path}.status"), format!("{status} is no answer"), hint);
        }
        if matches!(status, 204 | 205 | 304) && !spec.body.is_empty() {
            let hint = "leave the body out";
            self.problem(&format!("{path}.body"), format!("a {status} has no body"), hint);
        }
        let content_type = spec.content_type.unwrap_or_else(|| "text/plain; charset=utf-8".into());
        if !header::is_value(&content_type) || content_type.is_empty() {
            let message = format!("`{}` is not a type", content_type.escape_debug());
            let hint = "like `application/json`";
            self.problem(&format!("{path}.content_type"), message, hint);
        }
        let body = spec.body.into_bytes().into();
        Reply { status, location: None, content_type, body, file: None }
    }

    fn reply(&mut self, reply: Reply) -> Option<ReplyId> {
        let id = u32::try_from(self.replies.len()).ok()?;
        self.replies.push(reply);
        Some(ReplyId(id))
    }

    fn span(&mut self, path: &str, span: Option<Span>) -> Option<Duration> {
        if span.is_some_and(|s| s.0.is_zero()) {
            self.problem(
                path,
                "no time at all".to_owned(),
                "write more than zero, or leave it out",
            );
        }
        span.map(|s| s.0)
    }

    fn prefix(&mut self, path: &str, prefix: &str) {
        let byte = |b: u8| b.is_ascii_graphic() && !b"?#\"<>\\^`{}|".contains(&b);
        if !prefix.starts_with('/') || !prefix.bytes().all(byte) || prefix.contains("//") {
            let message = format!("`{}` is not a prefix of paths", prefix.escape_debug());
            self.problem(path, message, "write it like `/v1`");
        }
    }
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(plain)
}

/// `/v1/` means `/v1`: prefixes end on a segment boundary anyway.
fn untrailed(prefix: String) -> String {
    prefix.strip_suffix('/').map(str::to_owned).unwrap_or(prefix)
}
