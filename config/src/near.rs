//! Which known name a wrong one most likely stands for.

/// The known name nearest to `wrong`, when it is near enough to be meant.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance < reach(wrong, name))
        .min()
        .map(|(_, name)| name)
}

/// The hint for a wrong name: the near one, or all there are.
pub(crate) fn hint<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<String> {
    if let Some(near) = nearest(wrong, known.clone()) {
        return Some(format!("did you mean \"{near}\"?"));
    }
    let mut all: Vec<&str> = known.into_iter().collect();
    all.sort_unstable();
    all.dedup();
    match all.as_slice() {
        [] => None,
        [one] => Some(format!("\"{one}\" is the only one there is")),
        many if many.len() <= LISTED_MAX => Some(format!("one of: {}", many.join(", "))),
        _ => None,
    }
}

/// Fewer slips than this are forgiven: one in three letters and at least one, but not all letters.
fn reach(wrong: &str, name: &str) -> usize {
    let (wrong, name) = (wrong.chars().count(), name.chars().count());
    ((wrong.max(name) / 3).max(1) + 1).min(wrong.min(name))
}

/// A longer list helps nobody on one line.
const LISTED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let known = ["servers", "balance", "timeout", "to", "ip", "user", "a"];
        for (wrong, expected) in [
            ("severs", Some("servers")),
            ("timout", Some("timeout")),
            ("Balance", Some("balance")),
            ("usr", Some("user")),
            ("too", Some("to")),
            ("weather", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, known), expected, "{wrong}");
        }
    }
}
