//! What is wrong with a configuration: where, why, and what would be right.

use core::fmt;
use core::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde::Serialize;

use crate::secret;

/// One mistake, or one thing that deserves a second look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Where the underlined text ends: the position just past it.
    pub end: Position,
    /// The key that is meant, as in `route.orders.limits[1]`. Empty for the whole file.
    pub path: String,
    pub message: String,
    pub hint: Option<String>,
    /// The underlined bytes of the text.
    #[serde(skip)]
    pub span: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, but may not say what is meant.
    Warning,
}

/// Lines and columns count from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// Every mistake of a configuration, in the order of the text. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub(crate) Vec<Problem>);

impl Problem {
    /// The problem as a person reads it: `file:line:column`, the text underlined, the hint.
    pub fn render(&self, file: &str, text: &str, colour: bool) -> String {
        self.shown(file, &secret::masked(text), colour)
    }

    fn shown(&self, file: &str, text: &str, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let span = within(text, &self.span);
        let snippet =
            Snippet::source(text).path(file).annotation(AnnotationKind::Primary.span(span));
        let mut group = level.primary_title(self.message.as_str()).element(snippet);
        if let Some(hint) = &self.hint {
            group = group.element(Level::HELP.message(hint.as_str()));
        }
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.decor_style(DecorStyle::Unicode).render(&[group])
    }
}

impl Problems {
    /// Each problem as [`Problem::render`] shows it, with a line between them.
    pub fn render(&self, file: &str, text: &str, colour: bool) -> String {
        render(&self.0, file, text, colour)
    }

    pub fn iter(&self) -> core::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = core::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One line a problem, without the text it is about.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{}: {}", problem.line, problem.column, problem.message)?;
            if let Some(hint) = &problem.hint {
                write!(f, " ({hint})")?;
            }
        }
        Ok(())
    }
}

impl core::error::Error for Problems {}

/// Problems of either severity, for people.
pub fn render(problems: &[Problem], file: &str, text: &str, colour: bool) -> String {
    let text = secret::masked(text);
    let mut all = String::new();
    for problem in problems {
        all.push_str(&problem.shown(file, &text, colour));
        all.push_str("\n\n");
    }
    all
}

/// Finds lines and columns of byte offsets.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    text: &'a str,
    /// The offset at which each line begins.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let next = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Self { text, starts: core::iter::once(0).chain(next).collect() }
    }

    /// The line that holds this byte, from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }

    pub(crate) fn position(&self, offset: usize) -> Position {
        let offset = within(self.text, &(offset..offset)).start;
        let line = self.line(offset);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        Position { line, column }
    }
}

/// The span cut to the text and to the borders of its characters.
fn within(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let start = floor(span.start).unwrap_or(0);
    let end = floor(span.end).unwrap_or(0).max(start);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_from_one() {
        let lines = Lines::new("a = 1\nµß = 2\n");
        for (offset, expected) in
            [(0, (1, 1)), (4, (1, 5)), (6, (2, 1)), (8, (2, 2)), (9, (2, 2)), (99, (3, 1))]
        {
            let found = lines.position(offset);
            assert_eq!((found.line, found.column), expected, "offset {offset}");
        }
    }
}
