//! The configuration reference as Markdown, from the schema, and so from the types that are read.

use core::fmt::Write as _;

use serde_json::Value;

use crate::later;
use crate::schema::schema;

/// Every key with what it means, its form and its default: `docs/configuration.md`.
pub fn reference() -> String {
    let schema = schema();
    let mut page = Page { schema: &schema, text: [INTRODUCTION, MINIMAL, RULES].concat() };
    for key in ["server", "admin", "log", "store", "shed", "upstream", "limit", "route"] {
        let table = &schema["properties"][key];
        page.table(key, table);
    }
    page.quantities();
    page.text.push_str("\n## Not in this version\n\n");
    page.text.push_str("These keys are refused, so that nobody relies on what is not done:\n\n");
    for (key, what) in later::keys() {
        page.line(format_args!("- `{key}`: {what}"));
    }
    page.text
}

struct Page<'a> {
    schema: &'a Value,
    text: String,
}

impl<'a> Page<'a> {
    /// A heading, what the table is, its keys, and the tables inside it.
    fn table(&mut self, path: &str, written: &'a Value) {
        let meant = self.resolved(written);
        if let Some(each) = meant.get("additionalProperties").filter(|each| each.is_object()) {
            let (path, each) = (format!("{path}.NAME"), self.resolved(each));
            return self.keys(&path, described(written).or_else(|| described(each)), each);
        }
        self.keys(path, described(written).or_else(|| described(meant)), meant);
    }

    fn keys(&mut self, path: &str, description: Option<&str>, table: &'a Value) {
        let level = if path.trim_end_matches(".NAME").contains('.') { "###" } else { "##" };
        self.line(format_args!("\n{level} `[{path}]`\n"));
        if let Some(description) = description {
            self.line(format_args!("{description}\n"));
        }
        let keys = by_name(&table["properties"]);
        self.line(format_args!("| key | meaning | form | default |\n|---|---|---|---|"));
        for &(key, written) in &keys {
            let meaning = described(written).or_else(|| described(self.resolved(written)));
            let required =
                table["required"].as_array().is_some_and(|all| all.contains(&key[..].into()));
            let row = [
                format!("`{key}`"),
                meaning.unwrap_or_default().to_owned(),
                self.form(path, key, written),
                if required { "required".to_owned() } else { default(written) },
            ];
            let cells = row.map(|cell| cell.replace('\n', " ").replace('|', "\\|"));
            self.line(format_args!("| {} |", cells.join(" | ")));
        }
        for &(key, written) in &keys {
            self.variants(key, written);
        }
        for &(key, written) in &keys {
            if self.is_table(written) {
                self.table(&format!("{path}.{key}"), written);
            }
        }
    }

    /// What each word means, where that is said.
    fn variants(&mut self, key: &str, written: &Value) {
        let meant = self.resolved(written);
        let words = meant["oneOf"].as_array().into_iter().flatten();
        let mut words = words.filter(|word| word.get("const").is_some()).peekable();
        if words.peek().is_some() {
            self.line(format_args!("\n`{key}`:\n"));
        }
        for word in words {
            let description = described(word).unwrap_or_default();
            self.line(format_args!("- `{}`: {description}", word["const"]));
        }
    }

    /// How a value is written.
    fn form(&self, path: &str, key: &str, written: &'a Value) -> String {
        if self.is_table(written) {
            return format!("a table: `[{path}.{key}]`");
        }
        self.shape(written)
    }

    fn shape(&self, written: &'a Value) -> String {
        let meant = self.resolved(written);
        let either = meant["anyOf"].as_array().or_else(|| meant["oneOf"].as_array());
        if let Some(either) = either {
            let all: Vec<String> = either.iter().map(|one| self.shape(one)).collect();
            return all.join(", or ");
        }
        if let Some(word) = meant.get("const") {
            return format!("`{word}`");
        }
        if let Some(words) = meant["enum"].as_array() {
            let all: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return all.join(", or ");
        }
        match meant["type"].as_str() {
            Some("array") => format!("a list of: {}", self.shape(&meant["items"])),
            Some("integer") => "a whole number".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some("string") => {
                let what = described(meant).unwrap_or("text");
                match meant["examples"][0].as_str() {
                    Some(example) => format!("{what}, like `\"{example}\"`"),
                    None => "text".to_owned(),
                }
            }
            Some("object") if meant["additionalProperties"].is_object() => {
                format!("a table of: {}", self.shape(&meant["additionalProperties"]))
            }
            Some("object") => {
                let keys = by_name(&meant["properties"]).into_iter();
                let keys: Vec<String> = keys.map(|(key, _)| format!("`{key}`")).collect();
                format!("a table with {}", keys.join(", "))
            }
            Some(_) | None => "anything".to_owned(),
        }
    }

    fn quantities(&mut self) {
        self.text.push_str("\n## Quantities\n\n| | written like |\n|---|---|\n");
        for name in ["Span", "ByteSize", "Ratio", "Rate", "Network", "Secret"] {
            let Some(meant) = self.schema["$defs"].get(name) else { continue };
            let examples = meant["examples"].as_array().into_iter().flatten();
            let examples: Vec<String> = examples.map(|example| format!("`{example}`")).collect();
            let what = described(meant).unwrap_or(name);
            self.line(format_args!("| {what} | {} |", examples.join(", ")));
        }
    }

    /// Whether it has keys of its own that deserve a heading.
    fn is_table(&self, written: &'a Value) -> bool {
        self.resolved(written).get("properties").is_some()
    }

    /// What a reference stands for.
    fn resolved(&self, written: &'a Value) -> &'a Value {
        let pointer = written.get("$ref").and_then(Value::as_str);
        let meant = pointer.and_then(|at| self.schema.pointer(at.trim_start_matches('#')));
        meant.unwrap_or(written)
    }

    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// In the order of names, whichever order the map keeps.
fn by_name(properties: &Value) -> Vec<(&String, &Value)> {
    let mut keys: Vec<_> = properties.as_object().into_iter().flatten().collect();
    keys.sort_by_key(|(key, _)| *key);
    keys
}

fn described(schema: &Value) -> Option<&str> {
    schema["description"].as_str()
}

/// The default of a value. Tables have none of their own: their keys do.
fn default(written: &Value) -> String {
    match written.get("default") {
        None | Some(Value::Null | Value::Object(_)) => String::new(),
        Some(Value::Array(all)) if all.is_empty() => String::new(),
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(value) => format!("`{value}`"),
    }
}

const MINIMAL: &str = include_str!("../../examples/minimal.toml");
const INTRODUCTION: &str = r#"<!-- Generated from the types that are read. To change it, change their doc comments and run
     UPDATE_DOCS=1 cargo test -p sluice-config -->
# Configuration

A configuration is one TOML file. It may be short:

```toml
"#;
const RULES: &str = r#"```

- Tables have names (`[upstream.orders]`), and refer to each other by name. Names are up to 64
  letters, digits, `-` and `_`; logs and metrics use them.
- The order of the file never matters. The most specific route wins.
- Every quantity has a unit: `"30s"`, `"64KiB"`, `"10%"`, `"100/s"`. A bare `30` is refused.
- A secret is a reference (`"env:NAME"`, also `"${env:NAME}"`, or `"file:PATH"`), never the secret.
- `sluice check FILE` lists every mistake of a file in one run. Unknown keys are mistakes.
- `sluice schema` prints the JSON Schema, for editors.
- `version` is the version of this form of configuration. It is 1, and may be left out.
"#;
