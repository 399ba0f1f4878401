//! What is shipped holds: it can be read, and it satisfies the schema.

use sluice_config::{parse, schema};

const EXAMPLES: &[(&str, &str)] = &[
    ("sluice.toml", include_str!("../../examples/sluice.toml")),
    ("minimal.toml", include_str!("../../examples/minimal.toml")),
];

#[test]
fn the_examples_are_read_without_a_problem_or_a_warning() {
    for (name, text) in EXAMPLES {
        match parse(text) {
            Ok(config) => assert_eq!(config.warnings, [], "{name}"),
            Err(problems) => panic!("{}", problems.render(name, text, false)),
        }
    }
}

#[test]
fn the_examples_satisfy_the_schema() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    for (name, text) in EXAMPLES {
        let file: serde_json::Value = toml::from_str(text).unwrap();
        let wrong: Vec<String> = schema.iter_errors(&file).map(|e| e.to_string()).collect();
        assert_eq!(wrong, [] as [String; 0], "{name}");
    }
}

#[test]
fn the_schema_and_the_reader_agree_about_single_values() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    let mut wrong = Vec::new();
    for (key, values) in VALUES {
        for (value, good) in *values {
            let (table, key) = key.rsplit_once('.').unwrap();
            let route = "[upstream.u]\nservers = [\"u:1\"]\n[limit.l]\nrate = \"1/s\"\n[route.r]\nmatch = \"/\"\nto = \"u\"\n";
            let route =
                if table == "route.r" { route.to_owned() } else { format!("{route}[{table}]\n") };
            let text = format!("{route}{key} = {value}\n");
            let file: serde_json::Value = toml::from_str(&text).unwrap();
            let (read, valid) = (parse(&text).is_ok(), schema.is_valid(&file));
            if (read, valid) != (*good, *good) {
                wrong.push(format!("{table}.{key} = {value}: read {read}, valid {valid}"));
            }
        }
    }
    assert_eq!(wrong, [] as [String; 0]);
}

type Values = &'static [(&'static str, bool)];

const VALUES: &[(&str, Values)] = &[
    (
        "server.drain",
        &[("'30s'", true), ("'1.5min'", true), ("30", false), ("'30'", false), ("'5m'", false)],
    ),
    ("server.header_bytes", &[("'16KiB'", true), ("'16KB'", false), ("16", false)]),
    (
        "server.headers",
        &[("1", true), ("1000", true), ("0", false), ("1001", false), ("'1'", false)],
    ),
    ("server.connections", &[("1", true), ("0", false)]),
    ("server.limit_keys", &[("1024", true), ("1023", false)]),
    ("server.workers", &[("'auto'", true), ("4", true), ("0", false), ("'4'", false)]),
    ("server.io", &[("'epoll'", true), ("'kqueue'", false)]),
    ("server.encoded_slashes", &[("'keep'", true), ("'drop'", false)]),
    (
        "server.listen",
        &[
            ("[':80', '[::1]:81', { addr = '127.0.0.1:0' }]", true),
            ("[80]", false),
            ("[{}]", false),
            ("['80']", false),
        ],
    ),
    (
        "server.trusted_proxies",
        &[("['10.0.0.0/8', '::1']", true), ("['ten']", false), ("'10.0.0.0/8'", false)],
    ),
    ("server.identity_headers", &[("['x-a', 'x-b-*']", true), ("['x a']", false), ("['']", false)]),
    ("server.sever", &[("1", false)]),
    ("admin.listen", &[("'off'", true), ("'127.0.0.1:1'", true), ("'no'", false)]),
    (
        "admin.token",
        &[("'env:A'", true), ("'${file:/a}'", true), ("'hunter2'", false), ("'env:1'", false)],
    ),
    (
        "log.access.to",
        &[
            ("'file:/a'", true),
            ("'stdout'", true),
            ("'file:'", false),
            ("'/a'", true),
            ("'a/b'", false),
        ],
    ),
    ("log.access.hide", &[("['header:a', 'query:b']", true), ("['a']", false)]),
    (
        "log.access.sample",
        &[
            ("{ ok = '0.5%', slow = 'off' }", true),
            ("{ ok = '101%' }", false),
            ("{ ok = 1 }", false),
        ],
    ),
    (
        "upstream.u2.servers",
        &[
            ("['a:1', { addr = '[::1]:2', weight = 1000 }]", true),
            ("['a']", false),
            ("[{ weight = 1 }]", false),
            ("[{ addr = 'a:1', weight = 0 }]", false),
        ],
    ),
    ("limit.l2.rate", &[("'10/15min'", true), ("'10'", false), ("'0/s'", false), ("10", false)]),
    ("route.r.limits", &[("['l']", true), ("'l'", false)]),
    ("route.r.timeout", &[("'2s'", true), ("2", false)]),
    ("route.r.retries", &[("1", true), ("-1", false), ("'1'", false)]),
    ("route.r.timout", &[("'2s'", false)]),
    (
        "route.r.where",
        &[("{ from = ['::/0'], header = { a = '*' } }", true), ("{ froms = [] }", false)],
    ),
    (
        "route.r.size",
        &[("{ body = '1MiB' }", true), ("{ body = 1 }", false), ("{ bodies = '1MiB' }", false)],
    ),
    ("route.r.concurrency", &[("{ max = 5 }", true), ("{}", false)]),
];
