//! The text as a tree, with the place of every key and value.

use core::ops::Range;
use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Lines, Position, Problem, Severity};
use crate::reader::{Fault, Node, join};

#[derive(Debug)]
pub(crate) struct Document<'t> {
    pub(crate) root: Node<'t>,
    pub(crate) lines: Lines<'t>,
    places: BTreeMap<String, Spot>,
}

/// Where a path stands in the text.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
    /// It has keys of its own, so a finding about it belongs under its name.
    table: bool,
}

impl<'t> Document<'t> {
    /// Of a text without mistakes in its TOML, or as much of it as can be understood.
    pub(crate) fn parse(text: &'t str) -> Self {
        let root = DeTable::parse_recoverable(text).0;
        let root = Spanned::new(root.span(), DeValue::Table(root.into_inner()));
        let mut places = BTreeMap::new();
        note_places(&root, "", &mut places);
        Self { root, lines: Lines::new(text), places }
    }

    /// The nearest place that exists: the path's own, or that of what is around it.
    pub(crate) fn underline(&self, path: &str) -> Range<usize> {
        let mut path = path;
        loop {
            if let Some(spot) = self.places.get(path) {
                let whole = !spot.table || spot.key.is_empty();
                return if whole { spot.value.clone() } else { spot.key.clone() };
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return 0..0,
            }
        }
    }

    pub(crate) fn is_table(&self, path: &str) -> bool {
        self.places.get(path).is_some_and(|spot| spot.table)
    }

    pub(crate) fn key_span(&self, path: &str) -> Range<usize> {
        self.places.get(path).map_or(0..0, |spot| spot.key.clone())
    }

    /// The text at a path, when text stands there.
    pub(crate) fn text_at(&self, path: &str) -> Option<&str> {
        let mut node = &self.root;
        for step in path.split('.') {
            let (key, index) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
                Some((key, index)) => (key, Some(index)),
                None => (step, None),
            };
            node = node.get_ref().get(key)?;
            if let Some(index) = index {
                node = node.get_ref().get(index.parse::<usize>().ok()?)?;
            }
        }
        node.get_ref().as_str()
    }

    pub(crate) fn problem(&self, fault: Fault, severity: Severity) -> Problem {
        let Position { line, column } = self.lines.position(fault.span.start);
        Problem {
            severity,
            line,
            column,
            end: self.lines.position(fault.span.end),
            path: fault.path,
            message: fault.message,
            hint: fault.hint,
            span: fault.span,
        }
    }

    /// The value at a path of plain keys.
    pub(crate) fn at(&self, keys: &[&str]) -> Option<&Node<'t>> {
        keys.iter().try_fold(&self.root, |node, key| node.get_ref().get(*key))
    }

    /// The named tables under a key: `[upstream.NAME]`. Empty when that is no table.
    pub(crate) fn named(&self, key: &str) -> impl Iterator<Item = (&str, &Node<'t>)> {
        let table = self.at(&[key]).and_then(|node| node.get_ref().as_table());
        table.into_iter().flatten().map(|(name, node)| (name.get_ref().as_ref(), node))
    }
}

fn note_places(node: &Node<'_>, path: &str, places: &mut BTreeMap<String, Spot>) {
    match node.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                let path = join(path, key.get_ref());
                let table = value.get_ref().is_table();
                note_places(value, &path, places);
                places.insert(path, Spot { key: key.span(), value: value.span(), table });
            }
        }
        DeValue::Array(array) => {
            for (i, value) in array.iter().enumerate() {
                let path = format!("{path}[{i}]");
                note_places(value, &path, places);
                places.insert(path, Spot { key: 0..0, value: value.span(), table: false });
            }
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}
