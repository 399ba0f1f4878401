//! What limits promise to operators, in words and numbers.

use sluice_policy::admit::bound::{PlacesPromise, Promise};

#[path = "written/mod.rs"]
mod written;

fn limit(store: &str, limit: &str) -> Promise {
    let text = format!(
        "{store}\n[limit.codes]\n{limit}\n[route.r]\nmatch = \"/\"\n\
         respond = {{ body = \"ok\" }}\nlimits = [\"codes\"]\n"
    );
    written::plan(&text).promises().next().expect("a limit")
}

fn places(store: &str, concurrency: &str) -> PlacesPromise {
    let text = format!(
        "{store}\n[route.r]\nmatch = \"/\"\nrespond = {{ body = \"ok\" }}\n\
         concurrency = {{ {concurrency} }}\n"
    );
    written::plan(&text).places().next().expect("a route with a bound")
}

#[test]
fn a_bound_says_what_a_lost_store_and_a_proxy_before_it_add() {
    let three = "kind = \"sliding\"\nrate = \"3/h\"\nstore = \"redis\"\nlost = \"closed\"";
    let answers = "at most 3 in any 1h; 0 over, over all gateways while Redis answers";
    let hidden = "; at most 3 more after a restart that its proxy hides";
    // (the store, strict, the bound, the most over)
    for (store, strict, bound, over) in [
        ("nodes = 3", true, format!("{answers}; nothing more while it is away"), 0),
        (
            "nodes = 3\nproxied = true",
            false,
            format!("{answers}; nothing more while it is away"),
            0,
        ),
        (
            "nodes = 3\nproxied = true",
            true,
            format!("{answers}{hidden}; nothing more while it is away"),
            3,
        ),
    ] {
        let found = limit(store, &format!("{three}\nstrict = {strict}"));
        assert_eq!((found.bound, found.over_max), (bound, over), "{store} {strict}");
    }
    let own = limit("proxied = true", "rate = \"5/s\"");
    assert_eq!(own.over_max, 0, "nothing of it is in a store");
}

#[test]
fn places_say_what_gateways_that_are_cut_off_add() {
    let cut = "over all gateways while each reaches Redis; what is in progress on one that has not \
               for 1s counts no longer, at most 20 on 3 gateways; admitted meanwhile: ";
    for (store, lost, bound, over) in [
        ("nodes = 3", "max = 10", "over all workers of this node".to_owned(), Some(0)),
        ("nodes = 3", "lost = \"closed\"", format!("{cut}0 at most"), Some(20)),
        ("nodes = 3", "lost = \"local\"", format!("{cut}9 at most"), Some(29)),
        ("nodes = 3", "lost = \"open\"", format!("{cut}as many as come"), None),
    ] {
        let shared = lost.starts_with("lost");
        let more =
            if shared { format!("max = 10, store = \"redis\", {lost}") } else { lost.into() };
        let found = places(store, &more);
        let bound = format!("at most 10 in progress; 0 over, {bound}");
        assert_eq!((found.bound, found.over_max), (bound, over), "{more}");
    }
}
