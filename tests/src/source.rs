//! Rust sources as the house rules look at them: code without its comments and strings, and the
//! paths that it names.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file, with views that keep its lines where they are.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the repository, with `/`.
    pub path: String,
    pub text: String,
    /// Comments and strings blanked out.
    pub code: String,
    /// Strings blanked out, comments kept.
    pub prose: String,
}

impl Source {
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let (code, prose) = blank(text);
        Self { path: path.to_owned(), text: text.to_owned(), code, prose }
    }

    /// Every Rust file of the repository's packages. A folder that does not exist yet is empty.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let root = root();
        let mut paths = Vec::new();
        for package in ["policy", "config", "engine", "bench", "tests"] {
            collect(&root.join(package), &mut paths);
        }
        paths.sort();
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path).expect("a source in UTF-8");
            let path = path.strip_prefix(&root).expect("a path inside the repository");
            Self::new(&path.to_string_lossy(), &text)
        };
        paths.iter().map(read).collect()
    }

    /// The code without the tests at its end.
    #[must_use]
    pub fn shipped(&self) -> &str {
        let tests = self
            .code
            .match_indices("#[cfg(test)]")
            .find(|(at, mark)| self.code[at + mark.len()..].trim_start().starts_with("mod "));
        tests.map_or(&self.code, |(at, _)| &self.code[..at])
    }

    /// Whether `word` stands in this text by itself, not inside a longer name.
    #[must_use]
    pub fn names(text: &str, word: &str) -> bool {
        Self::line_naming(text, word).is_some()
    }

    /// The first line, from 1, that names `word`.
    #[must_use]
    pub fn line_naming(text: &str, word: &str) -> Option<usize> {
        let inside = |c: char| c.is_alphanumeric() || c == '_';
        let alone = |(at, _): &(usize, &str)| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            let opens = word.starts_with(inside);
            let closes = word.ends_with(inside);
            !(opens && before.is_some_and(inside) || closes && after.is_some_and(inside))
        };
        let (at, _) = text.match_indices(word).find(alone)?;
        Some(text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n')))
    }

    /// Every path the code names: each leaf of its `use` trees, and paths written in place.
    #[must_use]
    pub fn paths(code: &str) -> Vec<String> {
        let mut paths = Vec::new();
        for statement in code.split(';') {
            if let Some(tree) = use_tree(statement) {
                expand("", tree, &mut paths);
            }
        }
        let part = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
        let written = code.split(part).map(|path| path.trim_matches(':'));
        paths.extend(written.filter(|path| path.contains("::")).map(str::to_owned));
        paths
    }
}

/// The repository.
#[must_use]
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package's folder is inside the repository").to_owned()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, paths);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            paths.push(path);
        }
    }
}

/// What follows the last `use` of a statement, if that is what the statement is.
fn use_tree(statement: &str) -> Option<&str> {
    let start = statement.rfind("use ")?;
    let before = statement[..start].trim_end();
    let begins =
        before.is_empty() || before.ends_with(['}', '{', ']', ')']) || before.ends_with("pub");
    begins.then(|| statement[start + 4..].trim())
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let prefix = format!("{prefix}{}", tree[..open].trim());
        let inner =
            tree[open + 1..].trim_end().strip_suffix('}').unwrap_or_else(|| &tree[open + 1..]);
        let mut depth = 0;
        let mut start = 0;
        for (at, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&prefix, &inner[start..at], paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        expand(&prefix, &inner[start..], paths);
    } else if !tree.is_empty() {
        let name = tree.split(" as ").next().unwrap_or(tree);
        let path = format!("{prefix}{}", name.trim());
        paths.push(path.strip_suffix("::self").unwrap_or(&path).to_owned());
    }
}

/// Where the eye is while blanking.
enum At {
    Code,
    Line,
    /// Block comments nest.
    Block(usize),
    Text,
    /// How many `#` close it.
    RawText(usize),
}

fn blank(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut prose) = (String::new(), String::new());
    let mut at = At::Code;
    let mut i = 0;
    while i < chars.len() {
        let rest = &chars[i..];
        let (width, next) = step(&at, rest, i.checked_sub(1).map(|before| chars[before]));
        for &c in &rest[..width] {
            let space = if c == '\n' { '\n' } else { ' ' };
            let comment = matches!(at, At::Line | At::Block(_))
                || matches!(next, Some(At::Line | At::Block(_)));
            let string = !comment
                && (matches!(at, At::Text | At::RawText(_))
                    || matches!(next, Some(At::Text | At::RawText(_)))
                    || (width > 1 && c != '\n'));
            code.push(if comment || string { space } else { c });
            prose.push(if string { space } else { c });
        }
        i += width;
        at = next.unwrap_or(at);
    }
    (code, prose)
}

/// How many characters belong together here, and where they lead if elsewhere. More than one in
/// code that lead nowhere are a character literal.
fn step(at: &At, rest: &[char], before: Option<char>) -> (usize, Option<At>) {
    let pair = (rest[0], rest.get(1).copied().unwrap_or(' '));
    match at {
        At::Code => match pair {
            ('/', '/') => (2, Some(At::Line)),
            ('/', '*') => (2, Some(At::Block(1))),
            ('"', _) => (1, Some(At::Text)),
            ('r', '"' | '#') if !before.is_some_and(|c| c.is_alphanumeric() && c != 'b') => {
                let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
                match rest.get(1 + hashes) {
                    Some('"') => (2 + hashes, Some(At::RawText(hashes))),
                    _ => (1, None),
                }
            }
            ('\'', '\\') => {
                let end = rest.iter().skip(3).position(|c| *c == '\'').map_or(1, |end| end + 4);
                (end, None)
            }
            ('\'', _) if rest.get(2) == Some(&'\'') => (3, None),
            _ => (1, None),
        },
        At::Line => (1, (pair.0 == '\n').then_some(At::Code)),
        At::Block(depth) => match pair {
            ('*', '/') if *depth == 1 => (2, Some(At::Code)),
            ('*', '/') => (2, Some(At::Block(depth - 1))),
            ('/', '*') => (2, Some(At::Block(depth + 1))),
            _ => (1, None),
        },
        At::Text => match pair {
            ('\\', _) if rest.len() > 1 => (2, None),
            ('"', _) => (1, Some(At::Code)),
            _ => (1, None),
        },
        At::RawText(hashes) => {
            let closing = rest[0] == '"' && rest[1..].iter().take(*hashes).all(|c| *c == '#');
            if closing { (1 + hashes, Some(At::Code)) } else { (1, None) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let cases = [
            ("a // b", "a"),
            ("a /* b /* c */ d */ e", "a e"),
            (r#"a "b // \" c" d"#, "a d"),
            (r##"a r#"b " c"# d"##, "a d"),
            ("a br\"b\" d", "a b d"),
            ("f<'a>('b', '\\'', '\"') c", "f<'a>( , , ) c"),
            ("a('\\u{1F600}') b", "a( ) b"),
        ];
        for (text, expected) in cases {
            let code = Source::new("x.rs", text).code;
            let code: Vec<&str> = code.split_whitespace().collect();
            let expected: Vec<&str> = expected.split_whitespace().collect();
            assert_eq!(code, expected, "{text}");
        }
    }

    #[test]
    fn prose_keeps_comments_and_lines() {
        let source = Source::new("x.rs", "a \"b\nb\" // c\nd");
        assert_eq!(source.prose, "a   \n   // c\nd");
        assert_eq!(source.code.lines().count(), source.text.lines().count());
    }

    #[test]
    fn a_name_is_found_by_itself_only() {
        let cases = [("unsafe {", true), ("unsafe_op", false), ("not_unsafe", false)];
        for (text, expected) in cases {
            assert_eq!(Source::names(text, "unsafe"), expected, "{text}");
        }
        assert_eq!(Source::line_naming("a\nb\nc d", "d"), Some(3));
    }

    #[test]
    fn use_trees_are_spelled_out() {
        let code = "use std::{time::{self, Instant as Clock}, thread}; let a = b::c::d();";
        let paths = Source::paths(code);
        for path in ["std::time", "std::time::Instant", "std::thread", "b::c::d"] {
            assert!(paths.iter().any(|found| found == path), "{path} in {paths:?}");
        }
    }
}
