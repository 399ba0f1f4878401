//! A proxy before Redis that hides when it restarts: what is said of it, and what works all the same.

use sluice_tests::redis::Redis;
use sluice_tests::{Sluice, Veil, eventually};
use tempfile::TempDir;

use crate::shared::three;

fn config(url: &str, proxied: bool, strict: bool) -> String {
    format!(
        "version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log.access]\nto = \"off\"\n\
         [store.redis]\nurl = \"{url}\"\nnodes = 3\nproxied = {proxied}\n\
         [limit.fair]\nkey = [\"header:x-key\"]\nstore = \"redis\"\nrate = \"5/h\"\n\
         lost = \"closed\"\nstrict = {strict}\n\
         [route.all]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\nlimits = [\"fair\"]\n"
    )
}

/// As after a long time, for servers that do not tell their run.
fn warm(redis: &Redis) {
    let script = "for i = 0, 63 do redis.call('HSET', string.format('sluice:{s%03d}', i), \
                  'run', 'unknown', 'fence', '1') end return 1";
    assert_eq!(redis.ask(&["EVAL", script, "0"]).trim(), ":1");
}

#[test]
fn limits_are_counted_through_a_proxy_that_passes_on_keys_alone() {
    let Some(redis) = Redis::start() else { return };
    warm(&redis);
    let url = format!("redis://{}", Veil::before(&redis).addr());
    let gateways = three(&config(&url, true, true));
    let told = gateways[0].stderr();
    assert!(told.contains("the proxy before Redis hides its restarts"), "{told}");
    assert!(!told.contains("store_run_hidden"), "it was said to be so: {told}");
    let mut admitted = 0;
    eventually("the five of this hour to be used up", || {
        let ask = |sluice: &Sluice| sluice.client().ask("/", "X-Key: a\r\n").status();
        let statuses: Vec<u16> = gateways.iter().map(ask).collect();
        admitted += statuses.iter().filter(|status| **status == 200).count();
        // On a busy machine the first may all have waited for 20 ms in vain.
        (admitted > 0 && statuses == [429; 3]).then_some(())
    });
    assert!(admitted <= 5, "{admitted}");
    // The server forgets the script, and is told it anew with the next call.
    let asked = redis.calls("eval");
    assert_eq!(redis.ask(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    eventually("a key that is counted all the same", || {
        let status = gateways[1].client().ask("/", "X-Key: b\r\n").status();
        (status == 200 && redis.calls("eval") > asked).then_some(())
    });
    let limit = &gateways[2].admin("/v1/limits").json()["limits"][0];
    assert_eq!(limit["over_max"], 5, "{limit}");
    let bound = limit["bound"].as_str().unwrap_or_default();
    assert!(bound.contains("at most 5 more after a restart that its proxy hides"), "{bound}");
}

#[test]
fn check_and_the_doctor_tell_of_a_proxy_and_of_the_key_for_it() {
    let Some(redis) = Redis::start() else { return };
    let veil = Veil::before(&redis);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sluice.toml");
    let path = file.to_string_lossy();
    let (plain, veiled) = (format!("redis://{}", redis.addr()), format!("redis://{}", veil.addr()));
    // (url, proxied, strict, whether check warns, what the doctor says should be)
    for (url, proxied, strict, warns, should) in [
        (&plain, false, true, false, None),
        (&plain, true, true, true, Some("no `proxied`")),
        (&veiled, false, true, false, Some("`proxied = true` in [store.redis]")),
        (&veiled, true, false, false, None),
        (&veiled, true, true, true, None),
    ] {
        std::fs::write(&file, config(url, proxied, strict)).unwrap();
        let said = Sluice::command(&["check", &path]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert_eq!(said.stderr.contains("sluice.toml:18:10"), warns, "{}", said.stderr);
        eventually(&format!("{url} {proxied}: {should:?}"), || {
            let said = Sluice::command(&["doctor", "-c", &path]);
            let found: Vec<serde_json::Value> = serde_json::from_str(&said.stdout).ok()?;
            let told = found.last()?["should"].as_str().map(str::to_owned);
            let hidden = found.last()?["is"].as_str()?.contains("behind a proxy");
            assert_eq!(hidden, url == &veiled, "{found:?}");
            match (told, should) {
                (None, None) => Some(()),
                (Some(told), Some(should)) => told.contains(should).then_some(()),
                (Some(_), None) | (None, Some(_)) => None,
            }
        });
    }
}
