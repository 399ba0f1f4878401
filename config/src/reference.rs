//! The configuration reference as Markdown, from the schema.

/// The reference of every key, generated.
pub fn reference() -> String {
    String::new()
}
