//! Keys about who asks, which nobody verifies in this version.

use sluice_policy::admit::key::needs_identity;
use toml::de::DeValue;

use crate::check::fault;
use crate::document::Document;
use crate::reader::Reader;

/// Notes every part of a key that no request would have. One that falls back to something that
/// every request has (`user|ip`) stays.
pub(crate) fn refuse(document: &Document<'_>, reader: &mut Reader) {
    let limits = document.named("limit").map(|(name, node)| (format!("limit.{name}.key"), node));
    let keyed = ["concurrency", "cache"];
    let routes = document.named("route").flat_map(|(name, node)| {
        keyed
            .into_iter()
            .filter_map(move |of| Some((format!("route.{name}.{of}.key"), node.get_ref().get(of)?)))
    });
    let upstreams = document.named("upstream").filter_map(|(name, node)| {
        Some((format!("upstream.{name}.balance.key"), node.get_ref().get("balance")?))
    });
    for (path, table) in limits.chain(routes).chain(upstreams) {
        let parts = table.get_ref().get("key").and_then(|key| key.get_ref().as_array());
        for (i, node) in parts.into_iter().flatten().enumerate() {
            let DeValue::String(part) = node.get_ref() else { continue };
            if needs_identity(part) {
                let path = format!("{path}[{i}]");
                let message = format!("`{part}` needs to know who asks: not in this version");
                let hint = format!("write \"{part}|ip\" to count those by their address");
                reader.note(fault(&path, node.span(), message, Some(hint)));
            }
        }
    }
}
