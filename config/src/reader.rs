//! Reads typed values out of a document and goes on after a mistake.
//!
//! serde stops at the first error. So each error is noted, what it is about is left out, and the
//! value is read again, until it can be read or nothing is left of it. Errors that only follow
//! from what was left out (a required key whose value was wrong) are not noted.

mod error;

use core::cell::RefCell;
use core::ops::Range;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use self::error::{Error, Kind};
use crate::near;

pub(crate) type Key<'d> = Spanned<DeString<'d>>;
pub(crate) type Node<'d> = Spanned<DeValue<'d>>;

/// A mistake and the bytes it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) path: String,
    pub(crate) span: Range<usize>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) depends: Depends,
}

/// What must have been readable for a fault to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depends {
    Nothing,
    /// Every key: one is missing, or several together make no sense.
    Keys,
    /// Every table: there is none of that name.
    Tables,
}

/// All mistakes so far.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) faults: Vec<Fault>,
    /// Paths with a fault of their own.
    faulty: BTreeSet<String>,
    /// Tables that lack a required key, because it is missing or cannot be read.
    hollow: BTreeSet<String>,
    /// Paths that are not to be looked at.
    skipped: BTreeSet<String>,
}

/// Which keys of the outermost table are this reading's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys<'a> {
    All,
    /// These are read by somebody else, but they are known.
    Except(&'a [&'a str]),
    Only(&'a [&'a str]),
}

impl Reader {
    /// None when too much is wrong to say what was meant.
    pub(crate) fn read<'d, T: Deserialize<'d>>(
        &mut self,
        path: &str,
        key: Range<usize>,
        node: &'d Node<'_>,
        keys: Keys<'_>,
    ) -> Option<T> {
        self.read_or(path, key, node, keys, None)
    }

    /// Reads again what was hollow, with stand-ins for what it lacks, so that the rest of it can
    /// be checked too.
    pub(crate) fn read_with<'d, T: Deserialize<'d>>(
        &mut self,
        path: &str,
        key: Range<usize>,
        node: &'d Node<'_>,
        stand_ins: &'d DeTable<'d>,
    ) -> Option<T> {
        self.hollow
            .remove(path)
            .then(|| self.read_or(path, key, node, Keys::All, Some(stand_ins)))?
    }

    fn read_or<'d, T: Deserialize<'d>>(
        &mut self,
        path: &str,
        key: Range<usize>,
        node: &'d Node<'_>,
        keys: Keys<'_>,
        stand_ins: Option<&'d DeTable<'d>>,
    ) -> Option<T> {
        while self.faults.len() < FAULTS_MAX && !self.leaves_out(path) {
            let unknown = RefCell::default();
            let reading = Reading { reader: self, unknown, outermost: path, keys, stand_ins };
            let place = Place { reading: &reading, path: path.to_owned(), key: key.clone(), node };
            let result = T::deserialize(place);
            for fault in reading.unknown.into_inner() {
                self.note(fault);
            }
            match result {
                Ok(value) => return Some(value),
                Err(error) => self.note_error(error, path, &key),
            }
        }
        None
    }

    /// Notes a fault unless its path has one already.
    pub(crate) fn note(&mut self, fault: Fault) {
        if self.faulty.insert(fault.path.clone()) {
            self.faults.push(fault);
        }
    }

    /// Do not look at this path.
    pub(crate) fn skip(&mut self, path: &str) {
        self.skipped.insert(path.to_owned());
    }

    pub(crate) fn is_skipped(&self, path: &str) -> bool {
        self.skipped.contains(path)
    }

    /// Whether this path, a part of it or something around it is wrong already, so that a finding
    /// about it may be a mere consequence.
    pub(crate) fn touches(&self, path: &str) -> bool {
        self.faulty.iter().any(|faulty| inside(path, faulty) || inside(faulty, path))
    }

    fn leaves_out(&self, path: &str) -> bool {
        [&self.faulty, &self.hollow, &self.skipped].iter().any(|set| set.contains(path))
    }

    fn note_error(&mut self, error: Error, outermost: &str, outer_key: &Range<usize>) {
        let Error { place, kind, message, hint } = error;
        let (path, key, value) = match place {
            Some(place) => *place,
            None => (outermost.to_owned(), outer_key.clone(), outer_key.clone()),
        };
        let (path, span, depends) = match kind {
            Kind::Value => (path, value, Depends::Nothing),
            Kind::Key => (path, key, Depends::Nothing),
            Kind::Missing(name) => {
                let lacks = join(&path, name);
                let misspelt = self.is_misspelt(&path, name);
                self.hollow.insert(path);
                if misspelt {
                    // The compiler of the plan must not complain about it either.
                    self.faulty.insert(lacks);
                    return;
                }
                (lacks, key, Depends::Keys)
            }
        };
        self.note(Fault { path, span, message, hint, depends });
    }

    /// Whether a key with a fault in this table may be the one that is missing.
    fn is_misspelt(&self, table: &str, missing: &str) -> bool {
        let keys =
            self.faulty.iter().filter_map(|path| path.strip_prefix(table)?.strip_prefix('.'));
        let mut keys = keys.filter(|key| !key.contains('.'));
        keys.any(|key| near::nearest(key, [missing]).is_some())
    }
}

/// Whether `path` is `around` or lies inside it.
pub(crate) fn inside(path: &str, around: &str) -> bool {
    path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// What one attempt at a value shares.
struct Reading<'r, 'd> {
    reader: &'r Reader,
    unknown: RefCell<Vec<Fault>>,
    outermost: &'r str,
    keys: Keys<'r>,
    /// For the outermost table, when keys of it cannot be read.
    stand_ins: Option<&'d DeTable<'d>>,
}

/// A key of a table with its path and value.
type Entry<'d> = (String, &'d Key<'d>, &'d Node<'d>);

impl<'d> Reading<'_, 'd> {
    /// The keys of this table that are to be read here.
    fn entries(&self, path: &str, table: &'d DeTable<'_>) -> Vec<Entry<'d>> {
        let outermost = path == self.outermost;
        let keys = if outermost { self.keys } else { Keys::All };
        let ours = |key: &str| match keys {
            Keys::All => true,
            Keys::Except(names) => !names.contains(&key),
            Keys::Only(names) => names.contains(&key),
        };
        let entries = table.iter().filter(|(key, _)| ours(key.get_ref()));
        let entries = entries.map(|(key, node)| (join(path, key.get_ref()), key, node));
        let mut entries: Vec<_> =
            entries.filter(|(path, ..)| !self.reader.leaves_out(path)).collect();
        for (key, node) in self.stand_ins.filter(|_| outermost).into_iter().flatten() {
            let path = join(path, key.get_ref());
            if entries.iter().all(|(there, ..)| *there != path) {
                entries.push((path, key, node));
            }
        }
        entries
    }

    /// Notes the keys that are not among the fields.
    fn note_unknown(&self, path: &str, table: &'d DeTable<'_>, fields: &'static [&'static str]) {
        let elsewhere = match self.keys {
            Keys::Except(names) if path == self.outermost => names,
            Keys::All | Keys::Except(_) | Keys::Only(_) => &[],
        };
        for (path, key, _) in self.entries(path, table) {
            let name = key.get_ref().as_ref();
            if !fields.contains(&name) {
                let known = fields.iter().chain(elsewhere).copied();
                self.unknown.borrow_mut().push(unknown_key(path, key, known));
            }
        }
    }
}

/// The fault of a key that nobody reads.
pub(crate) fn unknown_key<'a>(
    path: String,
    key: &Key<'_>,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> Fault {
    let name = key.get_ref();
    Fault {
        path,
        span: key.span(),
        message: format!("unknown key `{name}`"),
        hint: near::hint(name, known),
        depends: Depends::Nothing,
    }
}

/// A value in the document, to be read.
struct Place<'r, 'd> {
    reading: &'r Reading<'r, 'd>,
    path: String,
    key: Range<usize>,
    node: &'d Node<'d>,
}

impl<'d> Place<'_, 'd> {
    fn any<V: Visitor<'d>>(&self, visitor: V) -> Result<V::Value, Error> {
        match self.node.get_ref() {
            DeValue::String(text) => visitor.visit_borrowed_str(text),
            DeValue::Boolean(is) => visitor.visit_bool(*is),
            DeValue::Integer(number) => {
                if let Ok(number) = i64::from_str_radix(number.as_str(), number.radix()) {
                    visitor.visit_i64(number)
                } else if let Ok(number) = u64::from_str_radix(number.as_str(), number.radix()) {
                    visitor.visit_u64(number)
                } else {
                    Err(de::Error::custom("the number is too large"))
                }
            }
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(de::Error::custom("the number cannot be read")),
            },
            DeValue::Datetime(_) => {
                Err(de::Error::invalid_type(Unexpected::Other("a date"), &visitor))
            }
            DeValue::Array(array) => {
                let elements = array.iter().enumerate();
                let elements = elements.map(|(i, node)| (format!("{}[{i}]", self.path), node));
                let elements = elements.filter(|(path, _)| !self.reading.reader.leaves_out(path));
                visitor.visit_seq(Elements { reading: self.reading, left: elements })
            }
            DeValue::Table(table) => {
                let left = self.reading.entries(&self.path, table).into_iter();
                visitor.visit_map(Entries { reading: self.reading, left, value: None })
            }
        }
    }

    fn placed<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.at(self.path, self.key, self.node.span()))
    }
}

impl<'r, 'd> de::Deserializer<'d> for Place<'r, 'd> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        let result = self.any(visitor);
        self.placed(result)
    }

    fn deserialize_option<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'d>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'d>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let DeValue::Table(table) = self.node.get_ref() else {
            return self.deserialize_any(visitor);
        };
        self.reading.note_unknown(&self.path, table, fields);
        let known = self.reading.entries(&self.path, table).into_iter();
        let left = known.filter(|(_, key, _)| fields.contains(&key.get_ref().as_ref()));
        let result = visitor.visit_map(Entries { reading: self.reading, left, value: None });
        self.placed(result)
    }

    fn deserialize_enum<V: Visitor<'d>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let DeValue::String(text) = self.node.get_ref() else {
            return self.deserialize_any(visitor);
        };
        let variant: StrDeserializer<'_, Error> = text.as_ref().into_deserializer();
        let result = visitor.visit_enum(variant);
        self.placed(result)
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'d>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Elements<'r, 'd, I> {
    reading: &'r Reading<'r, 'd>,
    left: I,
}

impl<'d, I: Iterator<Item = (String, &'d Node<'d>)>> SeqAccess<'d> for Elements<'_, 'd, I> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'d>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((path, node)) = self.left.next() else { return Ok(None) };
        let place = Place { reading: self.reading, path: path.clone(), key: node.span(), node };
        seed.deserialize(place).map(Some).map_err(|e| e.at(path, node.span(), node.span()))
    }
}

struct Entries<'r, 'd, I> {
    reading: &'r Reading<'r, 'd>,
    left: I,
    /// The value of the key that was read last.
    value: Option<Entry<'d>>,
}

impl<'d, I> MapAccess<'d> for Entries<'_, 'd, I>
where
    I: Iterator<Item = Entry<'d>>,
{
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'d>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((path, key, node)) = self.left.next() else { return Ok(None) };
        let name: StrDeserializer<'_, Error> = key.get_ref().as_ref().into_deserializer();
        let result = seed.deserialize(name);
        let result = result.map_err(|e| e.about_a_key().at(path.clone(), key.span(), node.span()));
        self.value = Some((path, key, node));
        result.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'d>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((path, key, node)) = self.value.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let place = Place { reading: self.reading, path: path.clone(), key: key.span(), node };
        // A type that checks what it has read fails outside of its place.
        seed.deserialize(place).map_err(|e| e.at(path, key.span(), node.span()))
    }
}

/// Nobody reads more, and reading again after each has its price.
pub(crate) const FAULTS_MAX: usize = 100;
